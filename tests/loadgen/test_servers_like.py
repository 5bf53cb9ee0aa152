"""A tiny replay against a server like each kind: right counts, right findings, and whether both sides agree."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from runs import Runner, trace_of, turn
from servers_like import AFTER, BEFORE, ServerLike, counted

from loadgen.agreement import Verdict
from loadgen.quirks import KINDS, CachedIn, IgnoreEos, UsageIn, quirks_of
from loadgen.results.document import document
from loadgen.results.report import print_report
from loadgen.results.run_file import RunFile
from loadgen.server import ServerError
from loadgen.traces.model import Turn
from tests.servers.pages import Kind
from tests.servers.stand_in import StandIn

TALK = trace_of((0.0, [turn("Hello there", 5), turn("And then?", 3)]), (0.0, [turn("Hello there", 4)]))
FIRST = len(BEFORE + "Be kind." + "Hello there" + AFTER)  # tokens of a session's first prompt
ASKED = 5 + 3 + 4
SIDES = ("prompt", "generation", "prefix")


async def played(run: Runner, server: StandIn, **options: Any) -> tuple[RunFile, dict[str, Any]]:
    options = {"probe": True, "concurrency": 1, **options}
    ran = await run.perform(run.settings(options.pop("trace", TALK), **options), server.url)
    return ran, document([ran])


@pytest.mark.parametrize(
    ("kind", "prompt", "prefix", "reason"),
    [
        ("paged-engine", "agree", "agree", ""),
        ("vllm", "agree", "agree", ""),
        ("sglang", "agree", "agree", ""),
        ("tgi", "agree", "cannot be told", "no answer told how many of its tokens were found"),
        ("tensorrt-llm", "agree", "cannot be told", "its metrics count blocks, not tokens"),
        ("llama.cpp", "agree", "agree", ""),
    ],
)
async def test_counts_findings_and_agreement(run: Runner, kind: Kind, prompt: str, prefix: str, reason: str) -> None:
    async with ServerLike(kind, version="9.8.7") as server:
        ran, told = await played(run, server)
        trial = server.bodies[0]
        prompt_tokens, cached, generated = counted(server.engine)
    summary, facts, agreement = told["summary"], told["server"], told["agreement"]
    assert (summary["completed"], summary["token_source"], summary["failed"]) == (3, "usage", 0)
    assert (facts["kind"], facts["version"], facts["differs"]) == (kind, "9.8.7", [])
    assert facts["metrics"]["names_of"] == kind
    assert facts["found"]["done"] is True
    assert facts["found"]["opens_with_role"] is (kind not in ("tgi", "paged-engine"))
    assert facts["found"]["usage"] == UsageIn.APART
    records = sorted(ran.records(), key=lambda record: record.key)
    assert records[0].input_tokens == records[2].input_tokens == FIRST
    trial_prompt = len(BEFORE + trial["messages"][0]["content"] + AFTER)
    assert summary["total_input_tokens"] == prompt_tokens - trial_prompt
    assert summary["total_output_tokens"] == generated - 2
    assert summary["total_output_tokens"] == (6 if kind == "tgi" else ASKED)
    assert (agreement["prompt"]["verdict"], agreement["generation"]["verdict"]) == (prompt, "agree")
    assert (agreement["prefix"]["verdict"], agreement["prefix"]["reason"].partition(";")[0]) == (prefix, reason)
    if prefix == Verdict.AGREE:
        assert agreement["prefix"]["client"] == agreement["prefix"]["server"]
        assert agreement["prefix"]["client"]["tokens"] == cached > 0
        assert summary["hit_rate"] == cached / summary["total_input_tokens"]
    lighter = [text for text in told["warnings"] if "The load was lighter" in text]
    assert bool(lighter) is (kind == "tgi")
    if kind == "tgi":
        assert lighter == [
            "3 of 3 answers were shorter than the trace asks, by 6 tokens in all: TGI has no ignore_eos, and takes it "
            "without effect. The load was lighter than the trace's."
        ]
        assert summary["finish_reasons"] == {"stop": 3}


@pytest.mark.parametrize("kind", ["vllm", "sglang", "tgi", "tensorrt-llm", "llama.cpp", "paged-engine"])
async def test_prompts_of_exact_lengths(run: Runner, kind: Kind) -> None:
    trace = trace_of((0.0, [Turn(input_tokens=40, output_tokens=2, seed=1)]))
    async with ServerLike(kind) as server:
        ran, told = await played(run, server, trace=trace)
    (record,) = ran.records()
    assert (record.input_tokens, record.asked_input, record.output_tokens) == (40, 40, 2)
    assert told["summary"]["asked_input_mismatches"] == 0
    assert told["server"]["found"]["usage"] == (UsageIn.LAST if kind in ("tgi", "llama.cpp") else UsageIn.APART)
    assert told["server"]["differs"] == []
    assert told["server"]["tokenize_by"] == quirks_of(kind).tokenize


async def test_chunks_of_several_tokens_are_no_tokens(run: Runner) -> None:
    async with ServerLike("sglang", per_chunk=4) as server:
        _, told = await played(run, server)
    assert (told["summary"]["total_output_tokens"], told["summary"]["total_chunks"]) == (ASKED, 4)


async def test_an_older_llama_cpp_tells_its_tokens_in_timings(run: Runner) -> None:
    async with ServerLike("llama.cpp", dated=True) as server:
        _, told = await played(run, server)
        _, cached, _ = counted(server.engine)
    assert (told["summary"]["total_output_tokens"], told["summary"]["token_source"]) == (ASKED, "usage")
    assert told["server"]["found"]["cached"] == CachedIn.TIMINGS
    assert told["agreement"]["prefix"]["verdict"] == Verdict.AGREE
    assert told["summary"]["cached_tokens"] == cached
    (note,) = (note for note in told["notes"] if "not quite what is known of llama.cpp" in note)
    assert "tokens are told in the last chunk of the answer, not in a chunk of its own" in note


async def test_an_older_tgi_ends_without_done(run: Runner) -> None:
    async with ServerLike("tgi", dated=True) as server:
        _, told = await played(run, server)
    assert told["summary"]["completed"] == 3
    assert told["server"]["differs"] == ["a stream ends without [DONE]"]


@pytest.mark.parametrize(
    ("kind", "flag"), [("vllm", "--enable-prompt-tokens-details"), ("sglang", "--enable-cache-report")]
)
async def test_cached_tokens_that_take_a_flag(run: Runner, kind: Kind, flag: str) -> None:
    async with ServerLike(kind, tells_cached=False) as server:
        _, told = await played(run, server)
    prefix = told["agreement"]["prefix"]
    assert (prefix["verdict"], prefix["client"]["tokens"]) == (Verdict.UNKNOWN, None)
    assert prefix["reason"].endswith(f"{quirks_of(kind).title} does when it is started with {flag}")
    assert prefix["server"]["tokens"] > 0
    assert told["summary"]["hit_rate"] is None
    assert told["server"]["differs"] == []


async def test_a_zero_that_is_left_out_is_a_zero(run: Runner) -> None:
    """Else the share found would be of those prompts alone of which something was found."""
    async with ServerLike("vllm", tells_zero=False) as server:
        ran, told = await played(run, server, endpoint="completions")  # whose first prompt begins like no other
    assert [record.cached_tokens for record in ran.records()].count(None) >= 1
    assert told["agreement"]["prefix"]["verdict"] == Verdict.AGREE
    assert told["summary"]["hit_rate"] == told["server"]["metrics"]["prefix_hit_rate"]


async def test_somebody_else_on_the_server_is_seen(run: Runner) -> None:
    async with ServerLike("sglang") as server:
        look = server._look_up

        def meddle(prompt: Any) -> int:
            server.engine.serve(1, prompt=64, generated=8, cached=32)
            return look(prompt)

        server._look_up = meddle  # type: ignore[method-assign]
        _, told = await played(run, server)
    assert {told["agreement"][side]["verdict"] for side in SIDES} == {Verdict.DIFFER}
    assert any("found in the prefix cache" in text for text in told["warnings"])


@pytest.mark.parametrize(("preempted", "verdict"), [(0, Verdict.DIFFER), (2, Verdict.UNKNOWN)])
async def test_what_preempted_requests_look_up_again_is_no_difference(
    run: Runner, preempted: int, verdict: Verdict
) -> None:
    async with ServerLike("vllm") as server:
        look = server._look_up

        def again(prompt: Any) -> int:
            server.engine.preemptions += preempted
            server.engine.cached_tokens += 16
            return look(prompt)

        server._look_up = again  # type: ignore[method-assign]
        _, told = await played(run, server)
    assert told["agreement"]["prefix"]["verdict"] == verdict
    assert ("preempted" in told["agreement"]["prefix"]["reason"]) is (preempted > 0)


async def test_metrics_at_another_address(run: Runner) -> None:
    async with ServerLike("triton") as server, StandIn("triton", server.engines) as metrics:
        _, without = await played(run, server)
        _, told = await played(run, server, metrics_url=metrics.url)
        assert metrics.metrics_asked > 2
    assert without["server"]["metrics"]["where"] == f"{server.url}/metrics"
    assert (told["server"]["kind"], told["server"]["metrics"]["where"]) == ("triton", f"{metrics.url}/metrics")
    assert told["settings"]["metrics_url"] == metrics.url
    assert told["agreement"]["prompt"]["verdict"] == Verdict.UNKNOWN
    assert "prompt_tokens" in told["server"]["metrics"]["untold"]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("none", r"--metrics-url http.*/metrics answered 404$"),
        ("html", "tells no metrics that are known here"),
        ("garbage", "has a line that cannot be read"),
        ("locked", "answered 403"),
    ],
)
async def test_metrics_that_were_named_and_are_not_there_end_it_before_the_run(
    run: Runner, mode: Any, words: str
) -> None:
    async with ServerLike("triton") as server, StandIn("vllm") as metrics:
        metrics.mode = mode
        with pytest.raises(ServerError, match=words):
            await played(run, server, metrics_url=f"{metrics.url}/metrics")
        assert server.bodies == []


async def test_a_run_does_not_wait_for_metrics_that_hang(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.server_metrics.TIMEOUT", 0.4)
    async with ServerLike("vllm") as server:
        server.mode = "hang"
        _, told = await asyncio.wait_for(played(run, server), 20)
    assert told["summary"]["completed"] == 3
    assert any("/metrics did not answer within 0.4 s" in note for note in told["notes"])
    assert told["server"]["metrics"] is None


async def test_the_report_says_which_server_what_it_lacks_and_what_both_measured(
    run: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    async with ServerLike("tensorrt-llm", version="1.2.0") as server:
        ran, told = await played(run, server)
    print_report([ran], Console(width=120), plots=False)
    out = " ".join(capsys.readouterr().out.split())
    assert "tensorrt-llm, version 1.2.0" in out
    assert "tokens told in a chunk of its own" in out
    assert "Not told: " in out
    assert "preemptions" in out
    for name in ("ttft", "tpot", "e2el"):
        both = told["latency_by_both"][name]
        assert both["client"]["count"] == both["server"]["count"]
        assert both["client"]["mean"] is not None
        assert both["server"]["mean"] is not None
    assert "TTFT, client (ms)" in out
    assert "TTFT, server (ms)" in out
    assert "found in the prefix cache" in out


def test_the_table_names_each_kind_once() -> None:
    assert len({quirks.kind for quirks in KINDS}) == len(KINDS)
    owners = [quirks.owner for quirks in KINDS if quirks.owner]
    assert len(set(owners)) == len(owners)
    assert quirks_of("something else").ignore_eos is IgnoreEos.UNKNOWN


async def test_tls(run: Runner, tmp_path: Path) -> None:
    from loadgen.keys import Keys
    from tests.servers.certificates import make_authority

    folder = tmp_path / "ca"
    folder.mkdir()
    authority = make_authority(folder)
    ca = str(authority.ca)
    assert isinstance(authority.server, ssl.SSLContext)
    async with ServerLike("vllm", tls=authority.server) as server:
        with pytest.raises(ServerError, match=r"that can be trusted: .*--ca-file names the certificate"):
            await played(run, server)
        settings = run.settings(TALK, probe=True, concurrency=1, ca_file=ca)
        ran = await run.perform(settings, server.url, keys=Keys(ca_file=ca))
        told = document([ran])
        assert (told["summary"]["completed"], told["warnings"]) == (3, [])
        assert told["server"]["metrics"]["where"] == f"{server.url}/metrics"
        settings = run.settings(TALK, probe=True, concurrency=1, insecure=True)
        ran = await run.perform(settings, server.url, keys=Keys(insecure=True))
        assert run.said.startswith("Warning: --insecure: any certificate is believed")
        told = document([ran])
        async with ServerLike("vllm") as plain:
            with pytest.raises(ServerError, match=r"https://\S+ that speaks TLS: .*; http:// may be meant"):
                await run.perform(run.settings(TALK), plain.url.replace("http:", "https:"))
            with pytest.raises(ServerError, match=r"^--metrics-url https://\S+ cannot be trusted: .*; --ca-file names"):
                await played(run, plain, metrics_url=f"{server.url}/metrics")
    assert told["warnings"] == ["The server's certificate was not checked (--insecure): who answered is not known."]
    assert told["settings"]["insecure"] is True
