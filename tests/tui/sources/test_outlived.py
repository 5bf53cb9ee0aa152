"""Blocks of a process that is no more: what is folded of a server that was started again, with its KV events."""

from __future__ import annotations

from servers.kv_events import Batch, BlockStored, Heard, Restarted, to_builtins
from servers.reading import lines_known
from tests.servers.pages import EngineFigures, page
from tui.sources.items import KvLink, KvMessage, Scrape, SourceHead
from tui.sources.report import server_report
from tui.sources.source import Source

HERE = "tcp://127.0.0.1:5557"


def test_a_tree_is_of_the_process_before_from_the_restart_to_the_next_event():
    source = Source("one", "http://127.0.0.1:8000", lambda: 1_010.0)
    served, fresh = EngineFigures(), EngineFigures()
    served.serve(9, prompt=100, generated=10)

    def stored(number, time):
        event = BlockStored((number + 1,), None, (1, 2, 3, 4), 4)
        return KvMessage(0, time, HERE, to_builtins(Heard(number, Batch(time, (event,)))))

    def outlived():
        view = source.view()
        (kv,) = view.kv
        assert server_report(view, 60.0)["kv_events"][0]["of_process_before"] == (view.outlived(kv) is not None)
        return view.outlived(kv)

    source.take(SourceHead(0, "one", "", "vllm", "1", time=1_000.0, every=1.0))
    source.take(Scrape(0, 1_000.0, 0.01, lines_known(page("vllm", [served]))))
    source.take(KvLink(0, 1_000.0, HERE, "live"))
    source.take(stored(0, 1_001.0))
    assert outlived() is None
    source.take(KvLink(0, 1_003.0, HERE, "connecting"))
    assert outlived() is None  # nobody knows yet whether it was started again
    source.take(Scrape(0, 1_005.0, 0.01, lines_known(page("vllm", [fresh]))))
    assert outlived() == 1_005.0
    source.take(KvLink(0, 1_006.0, HERE, "live"))
    assert outlived() == 1_005.0
    source.take(KvMessage(0, 1_008.0, HERE, to_builtins(Restarted())))
    source.take(stored(0, 1_008.0))
    assert source.view().kv[0].tree.resident == 1
    assert outlived() is None
    before = source.view(7, kv=True)
    assert before.outlived(before.kv[0]) == 1_005.0
