"""Who starts and who goes, from what is wanted."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cluster.protocol import ClusterControl, Role, WorkerPhase
from engine.cluster.sizes import FIELDS, SERVING, ClusterControlError, check, plan, wanted


class Member(NamedTuple):
    name: str
    role: Role
    phase: WorkerPhase = "ready"


def test_a_new_cluster_starts_all_that_is_wanted():
    assert plan(ClusterControl(prefill=2, decode=1, replicas=1), []) == (
        (("prefill-0", "prefill"), ("prefill-1", "prefill"), ("decode-0", "decode"), ("replica-0", "replica")),
        (),
        (),
    )


def test_the_newest_go_first_and_names_that_are_free_are_used_again():
    three = [Member("decode-0", "decode"), Member("decode-2", "decode"), Member("decode-1", "decode")]
    assert plan(ClusterControl(decode=1), three).drain == ("decode-1", "decode-2")
    assert plan(ClusterControl(decode=3), [three[1], Member("decode-1", "decode", "dead")]).start == (
        ("decode-0", "decode"),
    )


def test_who_is_about_to_go_comes_back_before_another_is_started():
    two = [Member("decode-0", "decode"), Member("decode-1", "decode", "draining")]
    assert plan(ClusterControl(decode=3), two) == ((("decode-2", "decode"),), ("decode-1",), ())


def test_the_last_one_that_can_serve_stays_until_another_can():
    control = ClusterControl(replicas=1)
    starting = [Member("decode-0", "decode"), Member("replica-0", "replica", "starting")]
    assert plan(control, starting).drain == ()
    assert plan(control, [starting[0], Member("replica-0", "replica")]).drain == ("decode-0",)


def test_one_that_has_yet_to_serve_goes_at_once():
    two = [Member("decode-0", "decode"), Member("decode-1", "decode", "starting")]
    assert plan(ClusterControl(decode=1), two).drain == ("decode-1",)


@pytest.mark.parametrize("prefill", [0, 3])
def test_a_control_with_which_nobody_would_be_served_is_refused(prefill):
    with pytest.raises(ClusterControlError, match=r"^decode: must be at least 1 where .*, got 0$"):
        check(ClusterControl(prefill=prefill))


phases = st.sampled_from(["starting", "ready", "draining", "dead"])
sizes = st.integers(0, 3)


@given(
    st.lists(st.tuples(st.sampled_from(list(FIELDS)), phases), max_size=10),
    st.builds(ClusterControl, prefill=sizes, decode=sizes, replicas=sizes),
)
def test_whatever_there_is_the_plan_leads_to_what_is_wanted(there, control):
    members = [Member(f"{role}-{number}", role, phase) for number, (role, phase) in enumerate(there)]
    found = plan(control, members)
    names = [name for name, _ in found.start]
    assert len({*names, *(member.name for member in members)}) == len(names) + len(members)
    after = [
        *(member for member in members if member.name not in found.drain and member.phase != "draining"),
        *(member for member in members if member.name in found.revive),
        *(Member(name, role) for name, role in found.start),
    ]
    kept = 0
    for role in FIELDS:
        count = sum(member.role == role for member in after)
        kept += count - wanted(control, role)
        assert count >= wanted(control, role)
    assert kept <= 1  # the last one that can serve
    able = [member for member in members if member.role in SERVING and member.phase == "ready"]
    assert not able or any(member.name not in found.drain for member in able)


def test_the_last_prefill_worker_stays_while_nobody_decodes():
    for phase in ("starting", "dead"):
        members = [Member("prefill-0", "prefill", "ready"), Member("decode-0", "decode", phase)]
        assert plan(ClusterControl(prefill=0, decode=1), members).drain == ()
    members[1] = Member("decode-0", "decode", "ready")
    assert plan(ClusterControl(prefill=0, decode=1), members).drain == ("prefill-0",)
