"""What keys change of a cluster: pure. The cluster's pool under the cursor is the one that is scaled."""

from __future__ import annotations

from dataclasses import replace

from engine.cluster.protocol import Role
from tui.cluster.controls import after, ask, read, scaled
from tui.cluster.view import ROLES, SIZES, ClusterView
from tui.commands import Ask, Change, Reaction, Say
from tui.focus import ClusterFocus
from tui.view import Frame


def pool(view: ClusterView, focus: ClusterFocus) -> Role:
    """The one under the cursor."""
    roles = tuple(view.pools)
    return next((role for role in roles if role == focus.pool), roles[0] if roles else ROLES[0])


def steer(frame: Frame, what: str) -> Reaction:
    if frame.status.fixed:
        return Say(frame.status.fixed, bad=True)
    view = frame.cluster
    if view is None:
        return Say("there is no cluster to switch yet", bad=True)
    control, role = view.control, pool(view, frame.focus.cluster)
    match what:
        case "separate":
            return Change({"separate": not control.separate})
        case "routing":
            return Change({"routing": after(control.routing)})
        case "local_prefill":
            return ask("local_prefill", control)
        case "size":
            asked = ask(SIZES[role], control)
            return Ask("size", f"{asked.label}, or as in '{_other(role)} 2' of another pool", asked.value)
    try:
        return Change(dict(scaled(role, 1 if what == "more" else -1, control)))
    except ValueError as error:
        return Say(str(error), bad=True)


def answer(frame: Frame, what: str, text: str) -> Reaction:
    """What was asked for."""
    if what == "filter":
        return frame.focus.but(cluster=replace(frame.focus.cluster, filter=text.strip(), top=0))
    if frame.status.fixed:
        return Say(frame.status.fixed, bad=True)
    if what not in ("size", "local_prefill") or frame.cluster is None:
        return None
    field = what
    if what == "size":
        role = pool(frame.cluster, frame.focus.cluster)
        name, _, number = text.strip().rpartition(" ")
        found = next((one for one in ROLES if name and one.startswith(name.strip().lower().rstrip("s"))), None)
        if name and found is None:
            return Say(f"there are {', '.join(ROLES)} workers, not {name[:40]!r}", bad=True)
        field, text = SIZES[found or role], number or text
    try:
        return Change({field: read(field, text)})
    except ValueError as error:
        return Say(str(error), bad=True)


def _other(role: Role) -> Role:
    return "replica" if role != "replica" else "decode"
