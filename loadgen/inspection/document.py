"""The JSON of `loadgen inspect`: what was counted, and the rates that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from loadgen.inspection.distribution import Distribution
from loadgen.inspection.inspecting import Inspection


def document(inspections: Sequence[Inspection], interrupted: bool) -> dict[str, Any]:
    """Fields are named as in `Inspection` and the structs in it; distributions without their bars."""
    return {"interrupted": interrupted, "files": [_file(inspection) for inspection in inspections]}


def _file(inspection: Inspection) -> dict[str, Any]:
    """The whole inspection, with the figures that are derived from others."""
    statistics = inspection.statistics
    file: dict[str, Any] = _plain(inspection)
    told = file["statistics"]
    for built, hit in zip(told["sharing"]["hits"], statistics.sharing.hits, strict=True):
        built |= {"rate": hit.rate, "rate_error": hit.rate_error}
    told["sharing"]["repeated_blocks"] = statistics.sharing.repeated_blocks
    if statistics.arrivals is not None:
        gaps = statistics.arrivals.gaps
        told["arrivals"] |= {
            "rate": statistics.arrivals.rate,
            "variation": None if gaps is None else gaps.variation,
            "burstiness": statistics.arrivals.gamma,
        }
    return file


def _plain(value: Any) -> Any:
    """Structs as dicts, and what is in them."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value)
        if isinstance(value, Distribution):
            del fields["bars"]
        return {name: _plain(field) for name, field in fields.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
