"""What a page tells that cannot be: a share beyond all there is, a count below 0. It is left out, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from servers.dialects import Dialect
from servers.exposition import Samples, refused
from servers.names import SPELLINGS, engine_of, first_told, levels, told
from servers.terms import SHARES, Engine

MOST_SHARE = 1.05  # a share beyond that is none: old servers told some in percent
_OF = {"kv_usage": "no memory has", "hit_rate": "no cache has"}


class Doubt(NamedTuple):
    """A gauge of an engine that is not believed, and the number that was told."""

    term: str
    engine: Engine
    told: float

    @property
    def why(self) -> str:
        if self.term in SHARES:
            return f"it tells {self.told * 100:.4g} %, which {_OF[self.term]}"
        return f"it tells {self.told:.6g}, which is no count"


def doubts(
    dialect: Dialect, found: Samples, gauges: Mapping[str, Mapping[Engine, float]], text: str
) -> tuple[Doubt, ...]:
    """Of a page with these samples, of which these gauges are believed."""
    none = any(value != value for series in found.values() for value in series.values())  # NaN
    wrong = refused(text, SPELLINGS[dialect.kind]) if none else {}
    doubted: list[Doubt] = []
    for term, alternatives in dialect.gauges.items():
        if not wrong and term not in SHARES:
            continue
        expression = first_told(alternatives, found)
        if expression is None:
            continue
        values: dict[Engine, float] = {}
        for name in expression.names:
            raw = wrong.get(name.name, {})
            values |= {engine_of(labels): raw[labels] for labels in told(name, found) if labels in raw}
        if term in SHARES:
            shares = levels(expression, found, share=True)
            values |= {engine: share for engine, share in shares.items() if share > MOST_SHARE}
        believed = gauges.get(term, {})
        doubted += [Doubt(term, engine, value) for engine, value in values.items() if not _among(engine, believed)]
    return tuple(doubted)


def _among(engine: Engine, believed: Mapping[Engine, float]) -> bool:
    """Also where an engine's model was found elsewhere."""
    return engine in believed or (not engine.model and any(other.rank == engine.rank for other in believed))
