"""Client and server agree on tokens, or it is told that they do not, or why it cannot be told."""

from __future__ import annotations

import pytest

from loadgen.agreement import Agreement, Found, PrefixHits, Tokens, Verdict, agreement
from loadgen.metrics.summary import Figures
from loadgen.metrics.window import Window
from loadgen.outcome import Outcome, RequestRecord, TokenSource
from tests.loadgen.metrics.records import record


def compare(*records: RequestRecord, prompt: int | None, generation: int | None, parts: int = 1) -> Agreement:
    figures = Figures()
    for one in records:
        figures.add(one)
    told: dict[str, object] = {"prompt_tokens": prompt, "generation_tokens": generation}
    nothing: dict[str, object] = {"prompt_tokens": 0, "generation_tokens": 0}
    return agreement(figures, [told, *[nothing] * (parts - 1)])


def test_equal_counts_agree() -> None:
    found = compare(record(), record(), prompt=40, generation=6)
    assert (found.prompt, found.generation) == (Tokens(40, 40, Verdict.AGREE), Tokens(6, 6, Verdict.AGREE))


def test_other_counts_differ() -> None:
    found = compare(record(), prompt=25, generation=2)
    assert (found.prompt.verdict, found.prompt.client, found.prompt.server) == (Verdict.DIFFER, 20, 25)
    assert (found.generation.verdict, found.generation.client, found.generation.server) == (Verdict.DIFFER, 3, 2)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (record(outcome=Outcome.CUT), "1 requests failed"),
        (record(outcome=Outcome.INTERRUPTED), "1 requests were interrupted"),
        (record(retries=2), "2 requests were tried again"),
    ],
)
def test_answers_that_the_client_never_had_whole_leave_it_open(other: RequestRecord, reason: str) -> None:
    found = compare(record(), other, prompt=90, generation=90)
    assert (found.prompt.verdict, found.prompt.reason) == (Verdict.UNKNOWN, reason)
    assert (found.generation.verdict, found.generation.reason) == (Verdict.UNKNOWN, reason)


def test_equal_counts_agree_whatever_else_happened() -> None:
    refused = record(outcome=Outcome.HTTP_ERROR, chunks=(), output_tokens=0, input_tokens=None)
    found = compare(record(), refused, prompt=20, generation=3)
    assert (found.prompt.verdict, found.generation.verdict) == (Verdict.AGREE, Verdict.AGREE)


def test_what_was_not_sent_is_no_doubt() -> None:
    unsent = record(outcome=Outcome.NOT_SENT, sent=None, chunks=(), ended=None, output_tokens=0)
    assert compare(record(), unsent, prompt=21, generation=3).prompt.verdict is Verdict.DIFFER


def test_chunks_are_not_tokens() -> None:
    found = compare(record(token_source=TokenSource.CHUNKS), prompt=20, generation=9)
    assert found.prompt.verdict is Verdict.AGREE
    assert (found.generation.verdict, found.generation.reason) == (
        Verdict.UNKNOWN,
        "the client counts by chunks, not by the server's usage",
    )


def test_input_that_was_not_told() -> None:
    found = compare(record(), record(input_tokens=None), prompt=40, generation=6)
    assert (found.prompt, found.generation.verdict) == (
        Tokens(None, 40, Verdict.UNKNOWN, "not every answer told its tokens"),
        Verdict.AGREE,
    )


def test_a_server_that_tells_nothing() -> None:
    figures = Figures()
    figures.add(record())
    for parts in ([None], [{"prompt_tokens": 20}, None], []):
        found = agreement(figures, parts)
        assert (found.generation.verdict, found.generation.server) == (Verdict.UNKNOWN, None)
    assert compare(record(), prompt=None, generation=3).prompt.server is None


def test_the_parts_of_a_resumed_run_are_added_up() -> None:
    assert compare(record(), prompt=20, generation=3, parts=2).prompt.verdict is Verdict.AGREE
    found = compare(record(), prompt=25, generation=3, parts=2)
    assert (found.prompt.verdict, found.prompt.reason) == (Verdict.UNKNOWN, "the run was resumed")


def hits(*records: RequestRecord, found: int) -> PrefixHits:
    figures = Figures()
    for one in records:
        figures.add(one)
    return agreement(figures, [{"prefix_hit_tokens": found, "prefix_queried_tokens": 60}]).prefix


@pytest.mark.parametrize(
    ("records", "verdict", "reason"),
    [
        ([record(cached_tokens=8), record(cached_tokens=0)], Verdict.DIFFER, ""),
        ([record(cached_tokens=8), record()], Verdict.DIFFER, ""),  # a server that leaves a 0 out
        (
            [record(cached_tokens=8), record(cached_tokens=0), record()],
            Verdict.UNKNOWN,
            "1 answers did not tell how many of their tokens were found, as others did",
        ),
        ([record(cached_tokens=8), record(input_tokens=None)], Verdict.UNKNOWN, "1 answers told no tokens"),
    ],
)
def test_hits_that_some_answers_do_not_tell(records: list[RequestRecord], verdict: Verdict, reason: str) -> None:
    found = hits(*records, found=16)
    assert (found.client.tokens, found.server.tokens, found.verdict, found.reason) == (8, 16, verdict, reason)
    assert hits(*records, found=8).verdict is Verdict.AGREE


def test_counts_of_the_model_that_was_asked_where_a_page_has_others() -> None:
    figures = Figures()
    figures.add(record(cached_tokens=8))

    def engine(model: str, prompt: int | None, generation: int, found: int) -> dict[str, object]:
        told = {"prompt_tokens": prompt, "generation_tokens": generation}
        return {"model": model, "rank": "", **told, "prefix_hit_tokens": found, "prefix_queried_tokens": prompt}

    engines = [engine("m", 15, 2, 8), engine("m", 5, 1, 0), engine("other", 100, 10, 50)]
    total = {**engine("", 120, 13, 58), "engines": engines}
    told = agreement(figures, [total], model="m")
    assert (told.model, told.prompt.server, told.generation.server, told.prefix.server.tokens) == ("m", 20, 3, 8)
    assert {told.prompt.verdict, told.generation.verdict, told.prefix.verdict} == {Verdict.AGREE}
    assert agreement(figures, [total], model="not told apart").prompt == Tokens(20, 120, Verdict.DIFFER)
    assert agreement(figures, [{**total, "prompt_tokens": 20}], model="m").model == "", "a trace may name all"
    lost = {**total, "engines": [engine("m", None, 2, 8), engine("other", 100, 10, 50)]}
    assert agreement(figures, [lost], model="m").prompt.verdict is Verdict.UNKNOWN


def test_a_window_is_not_the_run() -> None:
    with pytest.raises(ValueError, match="over the whole run"):
        agreement(Figures(window=Window(begin=1.0)), [])


def cluster(recovered: int = 0, restarts: int = 0, *, streamed: bool = True) -> dict[str, object]:
    worker = {"restarts": restarts, "streamed": streamed}
    return {"cluster": {"router": {"recovered": recovered}, "workers": {"decode-0": worker}}}


def test_what_two_engines_of_a_cluster_looked_up_counts_once() -> None:
    whole = Figures()
    whole.add(record(input_tokens=100, cached_tokens=48))
    again = {"continued_prompt_tokens": 100, "continued_looked_up_tokens": 101, "continued_found_tokens": 32}
    engine = {**cluster(), "looked_up_tokens": 201, "found_tokens": 80, **again}
    metrics = {"prompt_tokens": 200, "generation_tokens": 3, "prefix_queried_tokens": 201, "prefix_hit_tokens": 80}
    told = agreement(whole, [metrics], [engine])
    assert (told.prompt.verdict, told.prefix.verdict) == (Verdict.AGREE, Verdict.AGREE)
    assert told.prefix.client == told.prefix.server == told.prefix.engine == Found(48, 100)
    wrong = agreement(whole, [metrics], [{**engine, "found_tokens": 81}])
    assert wrong.prefix.verdict is Verdict.DIFFER


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (cluster(recovered=2), "2 requests went on elsewhere, after a death, a drain or an overdue transfer"),
        (cluster(restarts=1), "decode-0 was started again"),
        (cluster(streamed=False), "not every worker's step stream was read"),
    ],
)
def test_deaths_in_a_cluster_excuse_a_difference(engine: dict[str, object], reason: str) -> None:
    whole = Figures()
    whole.add(record(input_tokens=100, cached_tokens=48))
    metrics = {"prompt_tokens": 150, "generation_tokens": 3, "prefix_queried_tokens": 150, "prefix_hit_tokens": 48}
    told = agreement(whole, [metrics], [{**engine, "looked_up_tokens": 150, "found_tokens": 64}])
    assert (told.prompt.verdict, told.prompt.reason) == (Verdict.UNKNOWN, reason)
    assert told.prefix.verdict is Verdict.UNKNOWN
