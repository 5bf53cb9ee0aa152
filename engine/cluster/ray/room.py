"""Whether engines find room on the nodes of a Ray cluster. Amounts are of resources by name, as Ray counts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Amounts = Mapping[str, float]
_ROUNDING = 1e-6


def lacking(asked: Sequence[Amounts], free: Mapping[str, Amounts]) -> str:
    """What is missing, for a person; "" if each of `asked` finds a node, the largest ones first."""
    left = {node: dict(amounts) for node, amounts in free.items()}
    homeless = []
    for one in sorted(asked, key=lambda amounts: -sum(amounts.values())):
        node = next((node for node, amounts in left.items() if _fits(one, amounts)), None)
        if node is None:
            homeless.append(one)
            continue
        for name, amount in one.items():
            left[node][name] -= amount
    if not homeless:
        return ""
    names = sorted({name for one in asked for name in one})
    total = {name: sum(one.get(name, 0.0) for one in asked) for name in names}
    nodes = "; ".join(f"{node}: {_told({name: free[node].get(name, 0.0) for name in names})}" for node in free)
    where = f"free are {nodes}" if free else "no node is alive"
    if len(asked) == 1:
        return f"1 engine asks for {_told(total)}, and finds no room: {where}"
    return f"{len(asked):,} engines ask for {_told(total)}, and {len(homeless):,} of them find no room: {where}"


def _fits(asked: Amounts, free: Amounts) -> bool:
    return all(amount <= free.get(name, 0.0) + _ROUNDING for name, amount in asked.items())


def _told(amounts: Amounts) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items()) or "nothing"
