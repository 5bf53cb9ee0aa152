"""A short soak: random load, switches, aborts and two kills; nothing hangs, nothing leaks, everyone is told."""

from tests.soak.soak import Wanted, soak


def test_a_short_soak_finds_nothing(capsys) -> None:
    found = soak(Wanted(requests=600, kills=2, clients=16, pause_every=200, switch_every=0.3), print)
    assert found.findings == []
    assert sum(found.endings.values()) == 600
    assert len(found.ready_after) == 2
    assert found.endings["answered"] > 300
    assert found.endings["left"] + found.endings["cancelled"] > 50
    assert found.switches > 3
    assert found.records > 100
    assert len(found.sizes) == 3
