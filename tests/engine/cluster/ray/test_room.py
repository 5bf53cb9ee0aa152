"""Who finds room on which node, and how it is told where somebody does not."""

from engine.cluster.ray.room import lacking

ONE, HALF = {"CPU": 1.0}, {"CPU": 0.5}


def test_nothing_is_missing_where_all_fit() -> None:
    assert lacking([], {}) == ""
    assert lacking([HALF, ONE, HALF], {"a": {"CPU": 1.0}, "b": {"CPU": 1.0}}) == ""
    assert lacking([{"CPU": 0.1}] * 10, {"a": {"CPU": 1.0}}) == ""  # what floats lose does not count


def test_room_on_two_nodes_is_not_room_on_one() -> None:
    assert lacking([{"CPU": 2.0}], {"a": {"CPU": 1.0}, "b": {"CPU": 1.0}}) == (
        "1 engine asks for 2 CPU, and finds no room: free are a: 1 CPU; b: 1 CPU"
    )


def test_what_is_asked_and_what_is_free_is_told() -> None:
    told = lacking([{"CPU": 1.0, "prefill_host": 1.0}, ONE, ONE], {"a": {"CPU": 4.0}})
    assert told == (
        "3 engines ask for 3 CPU, 1 prefill_host, and 1 of them find no room: free are a: 4 CPU, 0 prefill_host"
    )
    assert lacking([ONE], {}) == "1 engine asks for 1 CPU, and finds no room: no node is alive"
