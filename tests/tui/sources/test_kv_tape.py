"""What is kept of an endpoint's KV events, beside the tree itself."""

from __future__ import annotations

import pytest

from servers.kv_events import Batch, BlockStored, Heard, to_builtins
from tests.tui.sources.heard import BEGIN, fold, take
from tui.sources.items import KvMessage, SourceHead

HEAD = SourceHead(0, "a", "http://127.0.0.1:8000", "vllm", "0.11", time=BEGIN, every=1.0)


def kv(number, came, published):
    """A message of one new block."""
    stored = BlockStored((number + 1,), None, (), 16)
    return KvMessage(0, came, "tcp://127.0.0.1:5557", to_builtins(Heard(number, Batch(published, (stored,)))))


def test_messages_of_the_past_are_no_churn_of_now():
    """Those that a replay socket still has come all at once, however long ago their blocks were stored."""
    source, clock = fold([HEAD])
    for number in range(200):  # five minutes of them within two seconds
        take(source, clock, kv(number, BEGIN + number / 100, 9_000.0 + number * 1.5))
    now = 9_000.0 + 330.0
    for number in range(200, 211):  # then one a second, as they are published
        take(source, clock, kv(number, BEGIN + number - 198, now + number - 198))
    (view,) = source.view().kv
    assert view.heard == view.tree.churn.stored == 211
    (first, begun), (last, ended) = view.churned[0], view.churned[-1]
    assert (ended.stored - begun.stored) / (last - first) == pytest.approx(1.0)
    assert source.view(source.items - 5).kv[0].churned == view.churned[:-5]
    assert source.view(150).kv[0].heard == 149
