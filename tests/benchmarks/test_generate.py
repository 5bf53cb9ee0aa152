"""`generate` is compared at its best: the batch size that suits the very work."""

from __future__ import annotations

from benchmarks.messages import Do, Settings
from benchmarks.peers.generate import Generate, make
from benchmarks.works import make_work


def test_a_warm_up_does_not_choose_the_batch_size() -> None:
    peer = make(Settings("tiny", "float32", 8 << 20, 32))
    work = make_work("burst", "1", 259, 0.15)  # 10 requests
    tried: list[int] = []

    def note_size(text: str) -> None:
        if text.startswith("trying"):
            tried.append(int(text.split()[-1]))

    peer.run(Do(work.cut(2, 2)), note_size)
    assert tried == []  # there is but one size
    assert isinstance(peer, Generate)
    run = peer.run(Do(work), note_size)
    assert tried == [4, 8, 10]
    assert run.note in {f"batches of {size}" for size in tried}
    peer.run(Do(make_work("burst", "2", 259, 0.15)), note_size)
    assert tried == [4, 8, 10]  # another round of the same work
