"""What a control can be, how it reads, what was written for it, and what counts as a change."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core import ControlError, check_control
from engine.protocol import Control, EngineInfo
from tui import controls
from tui.commands import Ask
from tui.controls import CONTROLS, KEYED, NUMBERS

INFO = EngineInfo("m", "float32", "cpu", 16, 64, 100, 512, "0", num_host_blocks=8)


def test_every_field_of_control_is_there_once():
    fields = [field.name for field in msgspec.structs.fields(Control)]
    assert sorted(control.field for control in CONTROLS) == sorted(fields)
    keys = [control.key for control in CONTROLS if control.key]
    assert sorted(keys) == sorted(set(keys)) == list("abcfklmsw")


@pytest.mark.parametrize("keyed", KEYED, ids=lambda keyed: keyed.field)
def test_choices_go_round(keyed):
    value, seen = getattr(Control(), keyed.field), []
    for _ in keyed.choices:
        seen.append(value)
        value = keyed.after(value)
    assert value == seen[0]
    assert set(seen) == set(keyed.choices)


@given(st.sampled_from(sorted(NUMBERS)), st.integers(1, 1 << 20), st.integers(0, 30), st.booleans())
def test_doubling_and_halving_stay_within_what_the_engine_takes(field, budget, times, up):
    number, control = NUMBERS[field], Control(max_num_batched_tokens=budget)
    for _ in range(times):
        value = (number.doubled if up else number.halved)(control)
        control = msgspec.structs.replace(control, **{field: value})
        check_control(control, INFO)
    if times == 30:
        assert getattr(control, field) == (number.most if up else max(number.least, 1 if field != "max_wait" else 0))


def test_half_the_budget_is_what_a_chunk_of_0_is_halved_and_doubled_from():
    chunk = NUMBERS["max_prefill_chunk"]
    assert (chunk.halved(Control()), chunk.doubled(Control())) == (128, 512)
    assert chunk.reads(0) == "half the budget"


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("max_num_batched_tokens", "1,024", 1024),
        ("max_num_batched_tokens", " 1 048 576 ", 1 << 20),
        ("max_num_seqs", "1", 1),
        ("max_prefill_chunk", "0", 0),
        ("max_wait", "2.5 s", 2.5),
        ("max_wait", "0", 0.0),
    ],
)
def test_what_is_written_is_read(field, text, value):
    assert NUMBERS[field].read(text) == value


@pytest.mark.parametrize(
    ("field", "text", "says"),
    [
        ("max_num_batched_tokens", "0", "token budget: must be a whole number from 1 to 1,048,576, got '0'"),
        ("max_num_batched_tokens", "1,048,577", "from 1 to 1,048,576"),
        ("max_num_batched_tokens", "5.5", "must be a whole number"),
        ("max_num_batched_tokens", "", "got ''"),
        ("max_num_seqs", "many", "batch limit: must be a whole number from 1 to 4,096, got 'many'"),
        ("max_num_seqs", "\u0663", "batch limit"),
        ("max_wait", "nan", "longest wait: must be a number from 0 to 86,400 s, got 'nan'"),
        ("max_wait", "-1", "from 0 to 86,400 s"),
        ("max_prefill_chunk", "x", "from 0 to 1,048,576, 0: half the budget, got 'x'"),
    ],
)
def test_what_cannot_be_is_told_with_what_can(field, text, says):
    with pytest.raises(ValueError, match="must be") as caught:
        NUMBERS[field].read(text)
    assert says in str(caught.value)


@given(st.sampled_from(sorted(NUMBERS)), st.text(max_size=12) | st.integers().map(str) | st.floats().map(str))
def test_whatever_is_written_is_what_the_engine_takes_or_an_error(field, text):
    try:
        value = NUMBERS[field].read(text)
    except ValueError:
        return
    check_control(msgspec.structs.replace(Control(), **{field: value}), INFO)


@given(st.sampled_from(sorted(NUMBERS)), st.integers(1, 4096))
def test_what_is_asked_begins_with_what_is_and_reads_back(field, value):
    number, control = NUMBERS[field], msgspec.structs.replace(Control(), **{field: value})
    ask = number.ask(control)
    assert (ask.what, number.read(ask.value)) == (field, value)
    assert NUMBERS["max_num_batched_tokens"].ask(Control()) == Ask(
        "max_num_batched_tokens", "token budget (1 to 1,048,576)", "512"
    )


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({}, {"max_num_batched_tokens": 1024}, [("budget 512", "1,024")]),
        ({}, {"max_num_seqs": 8, "chunked_prefill": False}, [("batch limit 64", "8"), ("chunks on", "off")]),
        ({}, {"max_prefill_chunk": 64}, [("longest chunk half the budget", "64")]),
        ({}, {"max_wait": 2.0}, []),  # it does nothing under fcfs
        (
            {"scheduling_policy": "shortest_prefill"},
            {"scheduling_policy": "shortest_prefill", "max_wait": 0.5},
            [("longest wait 10 s", "0.5 s")],
        ),
        ({}, {"reserved_fit": "best"}, []),
    ],
)
def test_any_control_that_does_something_is_a_change(before, after, words):
    assert controls.changes(Control(**before), Control(**after)) == words


def test_what_does_nothing_is_told():
    assert controls.idle("reserved_fit", Control()) == "matters only under reserved"
    assert controls.idle("reserved_fit", Control(allocation="reserved")) == ""
    assert controls.idle("max_wait", Control()) == "matters only under shortest prefill"
    assert controls.idle("max_prefill_chunk", Control(chunked_prefill=False)) == "matters only with chunked prefill"
    assert controls.idle("preempt", Control(), msgspec.structs.replace(INFO, num_host_blocks=0))


@pytest.mark.parametrize("field", [keyed.field for keyed in KEYED])
@pytest.mark.parametrize("info", [INFO, msgspec.structs.replace(INFO, num_host_blocks=0, num_blocks=31)])
def test_what_the_engine_would_refuse_is_known(field, info):
    refused = controls.cannot(field, Control(), info)
    for choice in controls.BY_FIELD[field].choices:
        control = msgspec.structs.replace(Control(), **{field: choice})
        if choice in refused:
            with pytest.raises(ControlError):
                check_control(control, info)
        else:
            check_control(control, info)
