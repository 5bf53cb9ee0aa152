"""What servers are told before each run, and what a reader is told of it."""

from __future__ import annotations

from aiohttp import web
from golden_cluster import GoldenCluster, state, worker
from rich.console import Console

from loadgen.command import Interrupt
from loadgen.experiments.comparing import conditions_of
from loadgen.experiments.measuring import Bench
from loadgen.experiments.sides import parse_sides
from loadgen.keys import Keys
from loadgen.settings import Settings


class Forgetting(GoldenCluster):
    """It answers so when it is to forget all that its workers have cached."""

    def __init__(self) -> None:
        super().__init__(state(worker("prefill-0"), worker("decode-0", phase="starting")), {})
        self.answers = 200
        self.cleared: list[str] = []
        self.app.router.add_post("/{path:.*}engine/cache/clear", self._clear)

    async def _clear(self, request: web.Request) -> web.Response:
        self.cleared.append(request.path)
        return web.json_response({}, status=self.answers)


async def test_a_cluster_is_told_once_for_all_its_workers() -> None:
    """Also of those that only start: it knows itself which have anything to forget."""
    bench = Bench(Console(quiet=True), Interrupt(), Keys())
    async with Forgetting() as server:
        assert await bench.forgets(server.url)
        assert server.cleared == ["/engine/cache/clear"]
        server.answers = 500
        assert not await bench.forgets(server.url)


def test_only_caches_that_were_emptied_are_told_so() -> None:
    sides = parse_sides("pools=colocated", "pools=1P1D", Settings(file="t.jsonl", engine_args=("--model", "tiny")))
    assert "; its prefix caches were emptied before each run" in conditions_of(sides, (), 1, ())
    told = conditions_of(sides, (), 1, {"http://127.0.0.1:1"})
    assert "; its prefix caches were not emptied before each run, though it was asked to" in told
