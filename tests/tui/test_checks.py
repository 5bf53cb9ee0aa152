"""What an engine really does is believed, whatever it does."""

from __future__ import annotations

import msgspec
import pytest

from engine.protocol import Control, Record, Snapshot
from tui.checks import Contradiction, check_record, check_snapshot
from tui.fold import EngineFold


@pytest.mark.parametrize("seed", range(6))
def test_whatever_an_engine_does_is_believed(simulated, seed):
    """Among it requests that join and end in one record, which tells no table of theirs."""
    controls = {0: simulated.STATIC_RESERVED, 150: Control(), 350: Control(preempt="swap")}
    hard = {"blocks": 360, "max_model_len": 900, "rate": 4.0, "system_tokens": 300, "host_blocks": 60}
    more = {"follow": 0.4, "forked": 0.3, "aborts": 0.0 if seed == 1 else 0.05, "check_invariants": False}
    items = simulated.simulate(420, controls, seed=seed, **hard, **more)
    fold, at_once = None, 0
    for item in items:
        if isinstance(item, Snapshot):
            check_snapshot(item)
            fold = EngineFold.from_snapshot(item)
            continue
        check_record(item, fold)
        fold.apply(item)
        at_once += bool({joined.request for joined in item.joined} & {left.request for left in item.left})
    check_snapshot(fold.to_snapshot())
    assert fold.seq == 420
    if seed == 1:
        assert at_once


@pytest.mark.parametrize("field", ["source", "target"])
@pytest.mark.parametrize("block", [-1, 360, 2**63])
def test_a_copy_of_a_block_that_is_not_there_is_not_believed(simulated, field, block):
    """A negative one would quietly be another block."""
    items = simulated.simulate(420, blocks=360, max_model_len=900, rate=4.0, system_tokens=300, forked=0.5, seed=1)
    fold = EngineFold.from_snapshot(next(items))
    for item in items:
        assert isinstance(item, Record)
        check_record(item, fold)
        if item.copies:
            break
        fold.apply(item)
    wrong = (msgspec.structs.replace(item.copies[0], **{field: block}), *item.copies[1:])
    with pytest.raises(Contradiction, match=rf"copies\.{field} cannot be {block}"):
        check_record(msgspec.structs.replace(item, copies=wrong), fold)
