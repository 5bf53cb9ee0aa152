"""Whatever a connector raises costs time alone: no engine, no answer, no block, and every offer is told of once."""

from __future__ import annotations

import pytest

from engine.protocol import Control
from tests.engine.handed import ENDLESS, PROMPT, handed, statuses
from tests.engine.handing import Handing
from tests.engine.mirror import greedy


@pytest.mark.parametrize(("siblings", "stopped"), [(0, False), (2, False), (2, True)])
def test_what_cannot_be_offered_goes_on_where_it_is(siblings: int, stopped: bool) -> None:
    both = Handing()
    both.connectors["p"].breaks["export"] = 1
    stops = (handed(seed=7).live["r0"].tokens[0],) if stopped else ()
    both.add(PROMPT, greedy(8, seed=7, stop_token_ids=stops, **ENDLESS), siblings)
    both.step("p")
    assert set(statuses(both, "p").values()) <= {"running"}
    both.add([8] * 9, greedy(3, **ENDLESS))  # the next one is offered again
    both.run()
    assert both.ends["r0"] == ("stop" if stopped else "length")
    assert len(both.ends) == 2 + siblings
    assert both.connectors["p"].exports == 1
    assert both.cores["p"].counters.handed_over == 1
    assert both.cores["p"].counters.forks == siblings


def test_who_goes_on_where_it_was_prefilled_is_not_offered_later() -> None:
    """Nor when a step is committed row by row, because somebody was aborted in it."""
    both = Handing()
    both.connectors["p"].breaks["export"] = 1
    both.add(PROMPT, greedy(8, seed=7, **ENDLESS), siblings=1)
    both.add([8] * 9, greedy(8, **ENDLESS), hand_over=False)
    both.step("p")
    both.cores["p"].runner.during = lambda: both.cores["p"].abort("r1")
    del both.live["r1"]
    both.step("p")
    assert statuses(both, "p") == {"r0": "running", "r0.1": "running"}
    both.cores["p"].runner.during = both.tick
    both.run()
    assert both.connectors["p"].exports == 0


@pytest.mark.parametrize("method", ["available", "allocated"])
@pytest.mark.parametrize("siblings", [0, 2])
def test_what_cannot_be_taken_is_computed(method: str, siblings: int) -> None:
    both = handed(siblings=siblings, seed=3)
    both.connectors["d"].breaks[method] = 1
    both.place(both.passing[0])
    both.step("d")
    assert "receiving" not in statuses(both, "d").values()
    (taken,) = both.taken
    assert f"OSError: {method} is broken" in taken.error
    both.run()
    assert both.ends == dict.fromkeys(both.ends, "length")
    assert len(both.ends) == 1 + siblings
    assert both.cores["d"].counters.transfers_failed == 1
    assert both.cores["d"].counters.prefill_tokens > 0


def test_what_was_found_is_given_back_with_what_cannot_be_taken() -> None:
    both = handed()
    both.run()
    both.add([7] * 8, greedy(20, **ENDLESS), side="d", hand_over=False)
    both.step("d")
    handed(both, prompt=[*PROMPT[:14], 1, 2, 3, 4])
    both.cores["d"].set_control(Control(max_num_seqs=2))
    both.connectors["d"].breaks["allocated"] = 1
    both.place(both.passing[0])
    both.step("d")
    assert statuses(both, "d")["r2"] == "running", "it was admitted anew, on what is cached"
    assert both.cores["d"].snapshot().sharing.found_tokens >= 12
    both.run()
    assert both.ends == dict.fromkeys(both.ends, "length")


def test_transfers_that_were_not_begun_are_given_up() -> None:
    both = handed()
    both.connectors["d"].breaks["load"] = 1
    both.place(both.passing[0])
    both.step("d")
    assert statuses(both, "d") == {"r0": "receiving"}
    both.run()
    assert [taken.error for taken in both.taken] == ["cancelled"]
    assert both.ends == {"r0": "length"}


def test_an_abort_that_a_connector_does_not_take_waits_for_the_transfer() -> None:
    both = handed()
    both.connectors["d"].breaks["cancel"] = 1
    both.place(both.passing[0])
    both.step("d")
    both.abort("r0")
    assert statuses(both, "d") == {"r0": "receiving"}
    both.run()
    assert [taken.error for taken in both.taken] == ["the request has ended"]


@pytest.mark.parametrize("expires", [False, True])
def test_a_lease_ends_whatever_the_connector_says_of_it(expires: bool) -> None:
    both = handed()
    both.connectors["p"].breaks["release"] = 1
    if expires:
        both.clock.now += 31.0
        both.step("p")
        assert statuses(both, "p") == {}
    both.run()
    assert both.ends == {"r0": "length"}


def test_ends_of_transfers_are_asked_for_again() -> None:
    both = Handing()
    for name in ("r0", "r1"):  # they were not three in a row
        handed(both)
        both.place(both.passing[0])
        both.step("d")
        while both.connectors["d"].jobs:
            both.tick()
        both.connectors["d"].breaks["poll"] = 2
        for _ in range(2):
            both.step("d")
            assert statuses(both, "d") == {name: "receiving"}
        both.run()
        assert both.ends[name] == "length"
        both.cores["d"].clear_cache()
    assert both.cores["d"].counters.received == 2


def test_an_engine_whose_blocks_may_be_written_for_ever_ends() -> None:
    both = handed()
    both.connectors["d"].breaks["poll"] = 3
    both.place(both.passing[0])
    for _ in range(3):
        both.step("d")
    with pytest.raises(OSError, match="poll is broken"):
        both.step("d")


def test_one_that_receives_nothing_does_not_ask() -> None:
    both = Handing()
    both.connectors["p"].breaks["poll"] = both.connectors["d"].breaks["poll"] = 10
    both.add(PROMPT, greedy(8, **ENDLESS), side="d", hand_over=False)
    both.run()
    assert both.ends == {"r0": "length"}
    assert both.connectors["d"].breaks["poll"] == 10
