"""What the answer to a trial request shows of a server, held against what is known of its kind. Pure."""

from __future__ import annotations

import msgspec

from loadgen.client import Response
from loadgen.quirks import CachedIn, IgnoreEos, Quirks, UsageIn, place
from loadgen.server import ServerFacts
from loadgen.settings import Settings
from loadgen.text.vocabulary import Endpoint


def with_found(
    facts: ServerFacts, response: Response, endpoint: Endpoint, settings: Settings, asked: int
) -> ServerFacts:
    """Facts with what a whole answer of at most `asked` tokens shows."""
    found = findings(response, endpoint, settings, asked)
    differs = dict.fromkeys((*facts.differs, *differences(facts.quirks, found, endpoint)))
    return msgspec.structs.replace(facts, found={**facts.found, **found}, differs=tuple(differs))


def findings(response: Response, endpoint: Endpoint, settings: Settings, asked: int) -> dict[str, str | bool]:
    """By the names of `Quirks` where these have one; what cannot be seen in that answer is left out."""
    found: dict[str, str | bool] = {"usage": _usage_in(response), "cached": _cached_in(response)}
    if response.finish:
        found["finish_reason"] = response.finish
    if response.streamed:
        found["done"] = response.done
        if endpoint is Endpoint.CHAT:
            found["opens_with_role"] = response.opening > 0
    if settings.ignore_eos and response.output_tokens is not None and response.output_tokens < asked:
        found["ignore_eos"] = IgnoreEos.IGNORED
    return found


def _usage_in(response: Response) -> UsageIn:
    if response.output_tokens is None:
        return UsageIn.NOWHERE
    return UsageIn.APART if response.usage_apart else UsageIn.LAST


def _cached_in(response: Response) -> CachedIn:
    if response.usage is not None and response.usage.cached_tokens is not None:
        return CachedIn.USAGE
    return CachedIn.NOWHERE if response.cached_tokens is None else CachedIn.TIMINGS


def differences(quirks: Quirks, found: dict[str, str | bool], endpoint: Endpoint) -> list[str]:
    """What is not as it is known of that kind, in words."""
    told = []
    usage = quirks.usage if endpoint is Endpoint.CHAT else quirks.usage_of_completions
    if usage is not None and "done" in found and found["usage"] != usage:
        told.append(f"tokens are told {place(found['usage'])}, not {place(usage)}")
    if quirks.cached is not None and not quirks.cached_flag and found["cached"] != quirks.cached:
        told.append(f"cached tokens are told {place(found['cached'])}, not {place(quirks.cached)}")
    if quirks.done is not None and found.get("done", quirks.done) != quirks.done:
        told.append("a stream ends " + ("with [DONE]" if found["done"] else "without [DONE]"))
    if quirks.ignore_eos is IgnoreEos.OBEYED and found.get("ignore_eos") == IgnoreEos.IGNORED:
        told.append("ignore_eos has no effect")
    expected = quirks.opens_with_role
    if expected is not None and found.get("opens_with_role", expected) != expected:
        told.append("a chat opens " + ("with" if found["opens_with_role"] else "without") + " a chunk of no text")
    return told
