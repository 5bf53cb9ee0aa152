"""Ray's own words, cut to a sentence. Those of actors that live and die are in test_two_nodes.py."""

from __future__ import annotations

import pytest
from ray._private.utils import check_version_info
from ray.exceptions import NodeDiedError, RayActorError

from engine.cluster.ray.errors import MOST, in_a_sentence


def test_other_versions_are_named() -> None:
    with pytest.raises(RuntimeError) as error:
        check_version_info({"ray_version": "2.1.0", "python_version": "3.6.7"}, "127.0.0.1")
    told = in_a_sentence(error.value)
    assert told.startswith("Version mismatch: The cluster was started with: Ray: 2.1.0 Python: 3.6.7 This process on ")
    assert "\n" not in told


def test_a_node_without_this_package_is_told_what_it_lacks() -> None:
    begun = (
        "The actor died because of an error raised in its creation task, \x1b[36mray::EngineActor.__init__()\x1b[39m"
    )
    told = f"{begun}\n ^^^^\nRuntimeError: failed to import:\n\nModuleNotFoundError: No module named 'engine'"
    assert in_a_sentence(RayActorError("0" * 32, told)) == (
        "ModuleNotFoundError: No module named 'engine': paged-top must be installed on each node, for the Python that "
        "runs Ray there"
    )


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RayActorError("0" * 32, "The actor died.\n\tpid: 1\nThe actor is dead because X. More."), "X"),
        (NodeDiedError("a\nb"), "a b"),
        (TimeoutError(), "TimeoutError"),
        (ValueError("x" * 2 * MOST), "x" * (MOST - 3) + "..."),
    ],
)
def test_others_are_cut(error: Exception, told: str) -> None:
    assert in_a_sentence(error).removeprefix("The actor is dead because ") == told
