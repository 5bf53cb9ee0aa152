"""Which server answers at an address, and where it tells its metrics; or why that is not known, in words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from servers.dialects import BY_KIND, DIALECTS
from servers.reading import read
from tui.sources.http import Answer, Http, NoAnswer, TooMuch
from tui.sources.items import FailedPhase

VERSION_SECONDS = 3.0  # for what is not worth waiting for
PATHS = tuple(dict.fromkeys(path for dialect in DIALECTS for path in dialect.paths))
MAX_WORDS = 200  # characters of a server's own words
NO_KEY = "needs a key: --api-key or --api-key-file"
# Where each kind tells its version, and under which name; a server of Triton's metrics tells nothing else.
_VERSIONS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "paged-engine": (("/version", "version"),),
    "vllm": (("/version", "version"),),
    "sglang": (("/server_info", "version"), ("/get_server_info", "version")),
    "tgi": (("/info", "version"),),
    "tensorrt-llm": (("/version", "version"),),
    "llama.cpp": (("/props", "build_info"),),
}
# Who owns the models that /v1/models lists, where metrics are not told: who that is, and what switches them on.
_OWNERS: Mapping[str, str] = {
    "paged-top": "a paged-engine, whose /metrics do not answer",
    "vllm": "vLLM without metrics: start it without --disable-log-stats",
    "sglang": "SGLang without metrics: start it with --enable-metrics",
    "llamacpp": "llama.cpp without metrics: start it with --metrics",
    "tensorrt_llm": "TensorRT-LLM without metrics: its configuration needs return_perf_metrics: true",
}


@dataclass(frozen=True, slots=True)
class Found:
    """A server of `kind`, whose metrics are at `path`; `answer` is the page that told it."""

    kind: str
    path: str
    answer: Answer = field(repr=False)


@dataclass(frozen=True, slots=True)
class NotFound:
    """`time` is when that was known, on the watcher's clock. `foreign`: it answers, and as no server known here.

    `work`: seconds that reading what came took this program."""

    time: float
    phase: FailedPhase
    reason: str
    work: float = 0.0


async def find(http: Http) -> Found | NotFound:
    """Ask once, at each path where servers tell their metrics. Raises nothing but what cancels it."""
    answers: list[tuple[str, Answer]] = []
    for path in PATHS:
        try:
            answer = await http.get(path)
        except NoAnswer as error:
            return NotFound(http.now(), "foreign" if isinstance(error, TooMuch) else "failing", str(error))
        answers.append((path, answer))
        if answer.status == 200:
            began = time.thread_time()
            try:
                reading = read(answer.text)
            except ValueError as error:
                reason = f"its metrics cannot be read: {error}"[:MAX_WORDS]
                return NotFound(answer.time, "failing", reason, time.thread_time() - began)
            if reading is not None:
                return Found(reading.kind, path, answer)
    refusal = next((told for _, answer in answers if (told := refused(http, answer)) is not None), None)
    if refusal is not None:
        return refusal
    return NotFound(http.now(), "foreign", await _foreign(http, answers))


def refused(http: Http, answer: Answer) -> NotFound | None:
    """What an answer without metrics means, where it says so itself."""
    told = words(answer.body)
    if answer.status in (401, 403):
        reason = f"it refuses the key: HTTP {answer.status}" if http.has_key else NO_KEY
        return NotFound(answer.time, "locked", reason)
    if answer.status in (502, 503, 504):
        return NotFound(answer.time, "failing", f"not ready to serve: HTTP {answer.status}{told and f': {told}'}")
    if answer.status in (429, 500):
        return NotFound(answer.time, "failing", f"HTTP {answer.status}{told and f': {told}'}")
    return None


def kind_of(text: str, expected: str) -> str | None:
    """Whose names a page has; None: nobody's that is known. It is read only where those expected are not there.

    Raises ValueError for a page that cannot be read.
    """
    for dialect in DIALECTS:
        first, *others = dialect.marks
        if any(mark in text for mark in (first, *dialect.spellings)) and all(mark in text for mark in others):
            if dialect.kind == expected:
                return expected
            break
    reading = read(text)
    return reading.kind if reading is not None else None


async def ask_version(http: Http, kind: str) -> str:
    """As it tells it, in a line; empty where it does not. Raises nothing but what cancels it."""
    for path, name in _VERSIONS.get(kind, ()):
        try:
            answer = await http.get(path, VERSION_SECONDS)
            told = msgspec.json.decode(answer.body)[name] if answer.status == 200 else None
        except (NoAnswer, msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
            continue
        if isinstance(told, str):
            return line(told)[:MAX_WORDS]
    return ""


async def _foreign(http: Http, answers: list[tuple[str, Answer]]) -> str:
    """What answers there, as far as that can be told, and what would make it tell more."""
    moved = next(((path, answer.moved) for path, answer in answers if answer.moved), None)
    if moved is not None:
        return f"{moved[0]} redirects to {line(moved[1])}, which is not followed: name that address"
    try:
        answer = await http.get("/v1/models", VERSION_SECONDS)
        models = msgspec.json.decode(answer.body)["data"] if answer.status == 200 else None
        owners = [str(model["owned_by"]) for model in models] if isinstance(models, list) else None
    except (NoAnswer, msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        owners = None
    path, answer = answers[0]
    asked = f"{path} answers HTTP {answer.status}" if answer.status != 200 else f"{path} has no names known here"
    if owners is None:
        known = ", ".join(dialect.title for dialect in DIALECTS)
        return f"no server that is known here ({known}): {asked}"
    who = next((_OWNERS[owner] for owner in owners if owner in _OWNERS), "an OpenAI API of a server not known here")
    return f"{who} ({asked})"


def words(content: bytes) -> str:
    """A server's own words of an error, in one line; empty where it has none that a person would read."""
    try:
        told = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = content[:MAX_WORDS].decode("utf-8", "replace")
        return "" if "<" in text or "\ufffd" in text else line(text)
    for name in ("error", "message", "detail", "reason"):
        if isinstance(told, dict) and name in told:
            told = told[name]
    return line(told)[:MAX_WORDS] if isinstance(told, str) else ""


def line(text: str) -> str:
    """In one line, and with nothing in it that moves a cursor."""
    return "".join(sign for sign in " ".join(text.split()) if sign.isprintable())


def title(kind: str) -> str:
    """What people call a kind of server."""
    return BY_KIND[kind].title if kind in BY_KIND else kind
