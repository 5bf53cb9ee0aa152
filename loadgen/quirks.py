"""What is known of each kind of server before it is asked: how it takes requests, and what its answers tell.

From each project's documentation and source, 2024 to 2026. A trial request finds out what a server really does; where
that is something else, that counts, and a run's report says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class IgnoreEos(StrEnum):
    """What becomes of `ignore_eos`, with which answers keep the lengths that a trace has."""

    OBEYED = "obeyed"
    IGNORED = "taken, without effect"
    REFUSED = "refused"
    UNKNOWN = "not known"


NOWHERE = "nowhere"


class UsageIn(StrEnum):
    """Where a stream tells its tokens, if it is asked for them."""

    APART = "a chunk of its own"
    LAST = "the last chunk of the answer"
    NOWHERE = NOWHERE


class CachedIn(StrEnum):
    """Where an answer tells how many of its prompt's tokens were found in the prefix cache."""

    USAGE = "usage"
    TIMINGS = "timings"
    NOWHERE = NOWHERE


class TokenizeBy(StrEnum):
    """How a server tells token ids."""

    PROMPT = "POST /tokenize"  # of vLLM, SGLang, llama.cpp and paged-engine, whose answers have `tokens`
    INPUTS = "POST /tokenize with inputs"  # of TGI, whose answer is a list
    INTERNAL = "POST /_internal/tokenize"  # of TensorRT-LLM
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Quirks:
    """One kind of server. None: that differs, or is not known.

    `owner`: whose its models are, by /v1/models; `hosts`: ends of the names of machines that are one for certain;
    `version`: where it tells its version, the newest way first. `length_field`: of a chat. `opens_with_role`: a chat's
    first chunk has no text. `done`: a stream ends with [DONE]. `cached_flag`: with which it is started to tell cached
    tokens, where it does not without. `counts_hits`: how its metrics count prefix hits. `metrics_find_more` and
    `usage_finds_more` say why they may count more than the usage of its answers where requests were preempted, and why
    less.
    """

    kind: str
    title: str
    owner: str = ""
    hosts: tuple[str, ...] = ()
    version: tuple[str, ...] = ("/version",)
    ignore_eos: IgnoreEos = IgnoreEos.OBEYED
    length_field: str = "max_tokens"
    usage: UsageIn | None = UsageIn.APART  # of chats
    usage_of_completions: UsageIn | None = UsageIn.APART
    opens_with_role: bool | None = True
    done: bool | None = True
    cached: CachedIn | None = CachedIn.USAGE
    cached_flag: str = ""
    tokenize: TokenizeBy = TokenizeBy.PROMPT
    counts_hits: str = ""
    metrics_find_more: str = ""
    usage_finds_more: str = ""


KINDS = (
    Quirks(
        kind="paged-engine",
        title="paged-engine",
        owner="paged-top",
        opens_with_role=False,
        counts_hits="each prompt once, when it is admitted; its last token is never among them",
        metrics_find_more="a preempted request looks its prompt up again",
    ),
    Quirks(
        kind="vllm",
        title="vLLM",
        owner="vllm",
        cached_flag="--enable-prompt-tokens-details",
        counts_hits="each prompt once, when it is admitted, in whole blocks; its last token is never among them",
        metrics_find_more="versions until 2025 count what a preempted request looks up again",
        usage_finds_more="usage has also what a KV connector found, which vLLM counts apart",
    ),
    Quirks(
        kind="sglang",
        title="SGLang",
        owner="sglang",
        version=("/server_info", "/get_server_info"),  # the latter until 2026
        cached_flag="--enable-cache-report",
        counts_hits="each prompt when its request ends: what runs still, or was aborted, is in neither number",
    ),
    Quirks(
        kind="tgi",
        title="TGI",
        version=("/info",),
        ignore_eos=IgnoreEos.IGNORED,
        usage_of_completions=UsageIn.LAST,
        opens_with_role=False,
        cached=CachedIn.NOWHERE,
        tokenize=TokenizeBy.INPUTS,
    ),
    Quirks(
        kind="tensorrt-llm",
        title="TensorRT-LLM",
        owner="tensorrt_llm",
        cached=None,  # since late 2025
        counts_hits="blocks, not tokens",
        tokenize=TokenizeBy.INTERNAL,
    ),
    Quirks(
        kind="triton",
        title="Triton",
        owner="Triton Inference Server",
        version=(),  # its OpenAI frontend does not tell it
        ignore_eos=IgnoreEos.UNKNOWN,
        opens_with_role=None,
        cached=None,
        tokenize=TokenizeBy.NOTHING,
    ),
    Quirks(
        kind="llama.cpp",
        title="llama.cpp",
        owner="llamacpp",
        version=("/props",),
        usage_of_completions=UsageIn.LAST,
        cached=None,  # in `timings` since late 2025, in the usage since early 2026
    ),
    Quirks(
        kind="openai",
        title="OpenAI",
        hosts=(".openai.com", ".openai.azure.com"),  # proxies call models of anybody its
        version=(),
        ignore_eos=IgnoreEos.REFUSED,
        length_field="max_completion_tokens",
        tokenize=TokenizeBy.NOTHING,
    ),
)
UNKNOWN = Quirks(
    kind="unknown",
    title="a server of unknown kind",
    version=("/info",),  # of TGI, whose models belong to themselves
    ignore_eos=IgnoreEos.UNKNOWN,
    usage=None,
    usage_of_completions=None,
    opens_with_role=None,
    done=None,
    cached=None,
)
_BY_KIND = {quirks.kind: quirks for quirks in KINDS}
_BY_OWNER = {quirks.owner: quirks for quirks in KINDS if quirks.owner}


def place(where: object) -> str:
    """Of a `UsageIn` or `CachedIn`, in words."""
    return NOWHERE if where == NOWHERE else f"in {where}"


def quirks_of(kind: str) -> Quirks:
    """What is known of that kind; of one that is not known: nothing."""
    return _BY_KIND.get(kind, UNKNOWN)


def quirks_by(host: str, owner: str | None) -> Quirks:
    """By the machine's name, and who a model belongs to as /v1/models says."""
    for quirks in KINDS:
        if f".{host}".endswith(quirks.hosts):
            return quirks
    return _BY_OWNER.get(owner or "", UNKNOWN)
