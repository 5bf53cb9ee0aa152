"""The lines of a Prometheus or OpenMetrics page that count, as samples. Pure.

Most of a page is nothing that is read here, so only lines with known names are looked at, and labels, which are the
same at every look, go through prometheus-client's parser once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from sys import getsizeof

from prometheus_client.parser import text_string_to_metric_families

from servers.sized_cache import SizedCache, bytes_of
from servers.terms import Labels

Samples = Mapping[str, Mapping[Labels, float]]  # by name, then by labels

MAX_PAGE = 32 << 20  # characters
MAX_LINE = 8_192  # characters of a line that is read: vLLM's longest, its configuration, has about 2,500
MAX_SERIES = 100_000  # that are read, of one page
MOST = 1e30  # of anything
# Ranks of one engine repeat the same value.
REPEATED = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "attn_cp_rank", "cp_rank"})

_NAME = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)")
# A name with its labels, a value, perhaps a time, perhaps an exemplar. Quantifiers never give back what they took.
_LINE = re.compile(
    r'[ \t]*+([a-zA-Z_:][a-zA-Z0-9_:]*+(?:[ \t]*+\{(?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+\})?+)'
    r"[ \t]*+([^ \t#]++)(?:[ \t]++[-+0-9.eE]++)?+[ \t]*+(?:\#.*)?"
)


def samples(text: str, names: Mapping[str, str]) -> Samples:
    """Those of the names alone, each under what it is mapped to. What is told more than once counts once: the highest,
    for those that are not up to date lag behind. What is no number of anything (`counted`) is NaN.

    Raises ValueError naming the first line that cannot be read, or for a page beyond the limits above.
    """
    found: dict[str, dict[Labels, float]] = {}
    for count, line in enumerate(_lines(text, names)):
        if count == MAX_SERIES:
            raise ValueError(f"a page of metrics with more than {MAX_SERIES:,} lines to read")
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"cannot read this line of metrics: {line[:200]!r}")
        try:
            name, labels = _series[match[1]]
            value = _number(match[2])
        except ValueError as error:
            raise ValueError(f"cannot read this line of metrics: {line[:200]!r} ({str(error)[:100]})") from None
        series = found.setdefault(names[name], {})
        before = series.get(labels, math.nan)
        if math.isnan(before) or value > before:
            series[labels] = value
    return found


def refused(text: str, names: Mapping[str, str]) -> Samples:
    """Of a page that can be read: what is no number of anything, as it is told."""
    found: dict[str, dict[Labels, float]] = {}
    for line in _lines(text, names):
        match = _LINE.fullmatch(line)
        if match is not None and math.isnan(counted(value := float(match[2]))):
            name, labels = _series[match[1]]
            found.setdefault(names[name], {})[labels] = value
    return found


def known(text: str, names: Iterable[str]) -> str:
    """The lines of the names alone, without exemplars: these may carry ids of requests."""
    kept = []
    for line in _lines(text, frozenset(names)):
        match = _LINE.fullmatch(line) if "#" in line else None
        kept.append(line if match is None else line[: match.end(2)])
    return "".join(f"{line}\n" for line in kept)


def _lines(text: str, names: Mapping[str, str] | frozenset[str]) -> Iterator[str]:
    if len(text) > MAX_PAGE:
        raise ValueError(f"a page of metrics of {len(text):,} characters; at most {MAX_PAGE:,} are read")
    # Not splitlines: labels may hold what it takes for the end of a line.
    for line in text.split("\n"):
        match = _NAME.match(line)
        if match is not None and match[1] in names:
            if len(line) > MAX_LINE:
                raise ValueError(
                    f"a line of metrics of {len(line):,} characters, {match[1][:100]}; at most {MAX_LINE:,} are read"
                )
            yield line.rstrip("\r")


def _number(text: str) -> float:
    if "_" in text:
        raise ValueError(f"no number: {text!r}")
    return counted(float(text))


def counted(value: float) -> float:
    """A number that something can be counted or measured by, so that sums of them are numbers too; else NaN."""
    return value if 0 <= value <= MOST else math.nan


def _read_series(head: str) -> tuple[str, Labels]:
    """A name with its labels, as prometheus-client reads them, without those of ranks."""
    try:
        (family,) = text_string_to_metric_families(f"{head} 1\n")
        (sample,) = family.samples
    except (ValueError, IndexError, KeyError) as error:
        raise ValueError(str(error) or "bad labels") from None
    return sample.name, frozenset(item for item in sample.labels.items() if item[0] not in REPEATED)


_series = SizedCache(_read_series, lambda head, found: getsizeof(head) + bytes_of(found[1]))
