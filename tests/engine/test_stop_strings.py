"""Stop strings: the same end however the text is cut, and nothing of a match is let out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.stop_strings import StopStrings

few_letters = st.text(alphabet="abc", max_size=30)
stop_lists = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=3)


def run(stops: list[str], chunks: list[str], *, include: bool = False) -> tuple[str, str | None, list[str]]:
    search = StopStrings(tuple(stops), include=include)
    out: list[str] = []
    for chunk in chunks:
        checked = search.push(chunk)
        out.append(checked.text)
        if checked.matched is not None:
            return "".join(out), checked.matched, out
    out.append(search.flush())
    return "".join(out), None, out


def by_hand(stops: list[str], text: str) -> tuple[str, str | None]:
    """The definition: the first place where some stop string is complete; of those, the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=500, deadline=None)
@given(stop_lists, st.lists(few_letters, max_size=8))
def test_the_cut_into_chunks_changes_nothing(stops: list[str], chunks: list[str]) -> None:
    text, matched, _ = run(stops, chunks)
    assert (text, matched) == by_hand(stops, "".join(chunks))


@settings(max_examples=300, deadline=None)
@given(stop_lists, few_letters)
def test_at_most_the_longest_less_one_is_held_back(stops: list[str], text: str) -> None:
    search = StopStrings(tuple(stops))
    out = 0
    for i, character in enumerate(text):
        checked = search.push(character)
        if checked.matched is not None:
            return
        out += len(checked.text)
        assert i + 1 - out <= max(map(len, stops)) - 1


def test_a_match_over_three_chunks_leaks_nothing() -> None:
    assert run(["STOP"], ["one S", "TO", "P two"]) == ("one ", "STOP", ["one ", "", ""])


def test_text_that_only_looked_like_a_match_comes_out() -> None:
    assert run(["STOP"], ["a S", "TO", "X", "b"]) == ("a STOXb", None, ["a ", "", "STOX", "b", ""])


def test_held_text_comes_out_at_the_end() -> None:
    assert run(["END"], ["the EN"]) == ("the EN", None, ["the ", "EN"])


def test_the_earliest_match_wins() -> None:
    assert run(["world", "lo"], ["hello world"])[:2] == ("hel", "lo")


def test_include_keeps_the_match_and_nothing_after_it() -> None:
    assert run(["lo"], ["hel", "lo world"], include=True)[:2] == ("hello", "lo")


def test_a_match_before_it_is_armed_is_text() -> None:
    search = StopStrings(("ab",))
    assert search.push("xab", armed=False).matched is None
    assert search.push("y", armed=True) == ("y", None)
    assert search.push("ab", armed=True) == ("", "ab")


def test_a_match_that_ends_when_armed_counts_from_its_beginning() -> None:
    search = StopStrings(("abc",))
    assert search.push("xab", armed=False) == ("x", None)
    assert search.push("c", armed=True) == ("", "abc")


def test_no_stop_strings_hold_nothing_back() -> None:
    assert StopStrings(()).push("abc") == ("abc", None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(("a", ""))
