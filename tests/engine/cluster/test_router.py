from __future__ import annotations

import random
from collections import Counter
from typing import get_args

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.cluster.block_index import prompt_names
from engine.cluster.loads import ANSWER_TOKENS, Work
from engine.cluster.protocol import Role, Routing
from engine.cluster.router import BOUND, Purpose, Router, UnknownWorker
from engine.messages import KvNews

SIZE = 4


def router_of(replicas: int, routing: Routing = "prefix") -> Router:
    router = Router(SIZE, routing)
    for number in range(replicas):
        router.add_worker(f"replica-{number}", "replica")
        router.open(f"replica-{number}")
    return router


def send(router: Router, prompt: list[int], purpose: Purpose = "whole") -> str:
    """A request that goes on; the worker."""
    return begun(router, prompt, purpose)[0]


def begun(router: Router, prompt: list[int], purpose: Purpose = "whole") -> tuple[str, Work]:
    names = prompt_names(prompt, SIZE)
    choice = router.choose(purpose, len(prompt), names)
    assert choice is not None
    return choice.worker, router.begin(choice.worker, len(prompt), choice.cached_tokens, names)


def answer(router: Router, prompt: list[int]) -> tuple[str, int]:
    """A request that is over before the next, its prompt cached; the worker, and what it had of it."""
    names = prompt_names(prompt, SIZE)
    choice = router.choose("whole", len(prompt), names)
    assert choice is not None
    work = router.begin(choice.worker, len(prompt), choice.cached_tokens, names)
    router.take(choice.worker, KvNews(stored=names))
    work.end()
    return choice.worker, choice.cached_tokens


def test_a_request_goes_where_its_prefix_is_cached_and_never_counts_its_last_token() -> None:
    router = router_of(4)
    router.take("replica-2", KvNews(stored=prompt_names(range(16), SIZE)))
    names = prompt_names(range(16), SIZE)
    assert router.choose("whole", 16, names) == ("replica-2", 12, True, False)
    assert router.choose("whole", 17, names) == ("replica-2", 16, True, False)
    assert router.by_prefix == router.decisions == 2


def test_equal_prompts_of_different_salts_share_nothing() -> None:
    router = router_of(4)
    router.take("replica-2", KvNews(stored=prompt_names(range(16), SIZE, "a")))
    assert router.choose("whole", 17, prompt_names(range(16), SIZE, "b")) == ("replica-0", 0, False, False)


def test_fifty_system_prompts_that_come_one_by_one_are_parted_among_four() -> None:
    router, draw = router_of(4), random.Random(0)
    systems = [[number, *draw.choices(range(1000), k=511)] for number in range(50)]
    found, sent, where = 0, Counter[str](), {number: set[str]() for number in range(50)}
    for _ in range(1000):
        number = draw.randrange(50)
        worker, cached = answer(router, systems[number] + draw.choices(range(1000), k=draw.randrange(32, 96)))
        found += cached > 0
        sent[worker] += 1
        where[number].add(worker)
    assert found > 900
    assert max(sent.values()) < 1.3 * 250
    assert router.imbalance is not None
    assert router.imbalance < 1.3
    assert sum(map(len, where.values())) < 75  # all four having each would be 200


def test_a_burst_of_one_new_prompt_stays_together_before_any_engine_has_told_of_it() -> None:
    router = router_of(4)
    first = send(router, [1] * 400)
    assert send(router, [1] * 401) == first
    assert send(router, [2] * 400) != first


def test_a_beginning_that_all_prompts_share_does_not_draw_them_to_one_worker() -> None:
    router, draw = router_of(4), random.Random(0)
    sent = Counter(answer(router, [7] * 32 + draw.choices(range(1000), k=300))[0] for _ in range(80))
    assert max(sent.values()) < 1.3 * 20


def test_a_prompt_that_everybody_sends_is_cached_by_all() -> None:
    router = router_of(4)
    sent = Counter(send(router, [7] * 512 + [number] * 8) for number in range(100))
    assert len(sent) == 4
    assert max(sent.values()) < 1.3 * 25


@pytest.mark.parametrize("routing", get_args(Routing))
def test_requests_that_are_alike_are_spread_over_all(routing: Routing) -> None:
    router = router_of(4, routing)
    sent = Counter(send(router, [number] * 20) for number in range(40))
    assert sorted(sent.values()) == [10] * 4


@pytest.mark.parametrize("routing", get_args(Routing))
def test_an_idle_cluster_does_not_send_everything_to_the_first(routing: Routing) -> None:
    router = router_of(4, routing)
    sent = Counter(answer(router, [number] * 20)[0] for number in range(40))
    assert sorted(sent.values()) == [10] * 4


def test_taking_turns_is_not_disturbed_by_choices_that_come_to_nothing() -> None:
    router = router_of(2, "round_robin")
    sent = []
    for number in range(6):
        router.choose("whole", 3000)  # of one that is prefilled elsewhere
        sent.append(send(router, [number]))
    assert sent == ["replica-0", "replica-1"] * 3


def test_least_loaded_looks_at_tokens_and_not_at_requests() -> None:
    router = router_of(2, "least_loaded")
    _, large = begun(router, [1] * 1000)
    assert [send(router, [2] * 10) for _ in range(5)] == ["replica-1"] * 5
    large.computed()
    assert send(router, [2] * 10) == "replica-0"


@pytest.mark.parametrize("separate", [True, False])
def test_each_purpose_has_its_roles(separate: bool) -> None:
    router = Router(SIZE, "round_robin", separate=separate)
    for role in get_args(Role):
        router.add_worker(role, role)
        router.open(role)
    sent = {purpose: {send(router, [1], purpose) for _ in range(6)} for purpose in get_args(Purpose)}
    assert sent["whole"] == ({"decode", "replica"} if separate else {"prefill", "decode", "replica"})
    assert sent["prefill"] == {"prefill"}
    assert sent["decode"] == {"decode", "replica"}


def test_a_moved_token_is_worth_less_than_a_computed_one() -> None:
    """To go on where the prefix is would save copying it; that holds up the answers there for less long."""
    router = router_of(2)
    names = prompt_names(range(400), SIZE)
    router.take("replica-0", KvNews(stored=names))
    for _ in range(3):
        router.begin("replica-0", 400, 400)
    assert router.choose("whole", 401, names) == ("replica-0", 400, True, False)
    assert router.choose("decode", 401, names) == ("replica-1", 0, False, True)


def test_whoever_is_avoided_is_not_chosen() -> None:
    router = router_of(2)
    assert {router.choose("whole", 9, avoid=["replica-0"])} == {("replica-1", 0, False, False)}
    assert router.choose("whole", 9, avoid=["replica-0", "replica-1", "nobody"]) is None
    assert router.choose("whole", 9, avoid=["nobody"]) == ("replica-0", 0, False, False)


def test_who_comes_late_gets_a_share_and_not_everything() -> None:
    router = router_of(3)
    for number in range(60):
        answer(router, [number] * 40)
    router.add_worker("late", "replica")
    router.open("late")
    sent = Counter(answer(router, [100 + number] * 40)[0] for number in range(40))
    assert 5 <= sent["late"] <= 15


def test_a_worker_that_starts_again_has_nothing() -> None:
    router = router_of(2)
    names = prompt_names(range(40), SIZE)
    router.take("replica-1", KvNews(stored=names))
    router.close("replica-1")
    router.forget("replica-1")
    router.open("replica-1")
    assert router.indexed_blocks == 0
    choice = router.choose("whole", 41, names)
    assert choice is not None
    assert choice.cached_tokens == 0


def test_names_are_known_once_and_as_long_as_there_is_a_worker() -> None:
    router = router_of(1)
    with pytest.raises(ValueError, match="replica-0"):
        router.add_worker("replica-0", "decode")
    router.remove_worker("replica-0")
    for use in (router.open, router.close, router.remove_worker, router.forget, router.load, router.routed):
        with pytest.raises(UnknownWorker, match="replica-0"):
            use("replica-0")


PROMPTS = [[family] * 8 + [branch] * 12 + [leaf] * 8 for family in (1, 2) for branch in (3, 4) for leaf in (5, 6)]


class RouterMachine(RuleBasedStateMachine):
    """Workers that come, drain, die and go, under requests; the model is plain dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router(SIZE)
        self.roles: dict[str, Role] = {}
        self.opened: set[str] = set()
        self.caches: dict[str, set[int]] = {}
        self.works: dict[Work, str] = {}
        self.added = 0

    @rule(role=st.sampled_from(get_args(Role)), number=st.integers(1, 3))
    def add(self, role: Role, number: int) -> None:
        for _ in range(number):
            name = f"{role}-{self.added}"
            self.added += 1
            self.router.add_worker(name, role)
            self.router.open(name)
            self.roles[name], self.caches[name] = role, set()
            self.opened.add(name)

    @precondition(lambda self: self.roles)
    @rule(which=st.integers(0, 30), way=st.sampled_from(["open", "open", "close", "die", "remove"]))
    def change(self, which: int, way: str) -> None:
        name = sorted(self.roles)[which % len(self.roles)]
        match way:
            case "open":
                self.router.open(name)
                self.opened.add(name)
            case "close" | "die":
                self.router.close(name)
                self.opened.discard(name)
                if way == "die":
                    self.router.forget(name)
                    self.caches[name] = set()
            case _:
                self.router.remove_worker(name)
                del self.roles[name], self.caches[name]
                self.opened.discard(name)

    @rule(routing=st.sampled_from(get_args(Routing)), separate=st.booleans())
    def control(self, routing: Routing, separate: bool) -> None:
        self.router.routing, self.router.separate = routing, separate

    @precondition(lambda self: self.roles)
    @rule(
        which=st.integers(0, 30),
        stored=st.sets(st.sampled_from([name for prompt in PROMPTS for name in prompt_names(prompt, SIZE)])),
        remove=st.booleans(),
        cleared=st.sampled_from([False, False, True]),
    )
    def tell(self, which: int, stored: set[int], remove: bool, cleared: bool) -> None:
        name = sorted(self.roles)[which % len(self.roles)]
        cache = set() if cleared else self.caches[name]
        removed = cache & stored if remove else set()
        new = stored - cache - removed
        self.router.take(name, KvNews(tuple(new), tuple(removed), cleared))
        self.caches[name] = cache - removed | new

    @rule(
        prompt=st.sampled_from(PROMPTS),
        tail=st.integers(1, 40),
        purpose=st.sampled_from(get_args(Purpose)),
        rows=st.sampled_from([0, 1, 1, 4]),
        times=st.integers(1, 6),
    )
    def request(self, prompt: list[int], tail: int, purpose: Purpose, rows: int, times: int) -> None:
        for _ in range(times):
            self._request([*prompt, *[9] * tail], purpose, rows)

    def _request(self, prompt: list[int], purpose: Purpose, rows: int) -> None:
        router, names = self.router, prompt_names(prompt, SIZE)
        roles = ("prefill",) if purpose == "prefill" else ("decode", "replica")
        if purpose == "whole" and not router.separate:
            roles = get_args(Role)
        allowed = {name for name in self.opened if self.roles[name] in roles}
        choice = router.choose(purpose, len(prompt), names, rows)
        assert router.choose(purpose, len(prompt), names, rows) == choice, "a choice changes nothing"
        if choice is None:
            assert not allowed
            return
        assert choice.worker in allowed
        cache = self.caches[choice.worker]
        full = [*names[: (len(prompt) - 1) // SIZE], None]
        assert choice.cached_tokens == SIZE * next(p for p, name in enumerate(full) if name not in cache)
        loads = {name: router.load(name) for name in allowed}
        cost = len(prompt) + rows * ANSWER_TOKENS
        match router.routing:
            case "prefix":
                mean = (sum(loads.values()) + cost) / len(allowed)
                assert loads[choice.worker] <= BOUND * mean + len(prompt)
                assert not choice.bounded or len(allowed) > 1
            case "least_loaded":
                assert loads[choice.worker] == min(loads.values())
            case _:
                assert (choice.by_prefix, choice.bounded) == (False, False)
        computed = purpose == "decode"
        work = router.begin(choice.worker, len(prompt), choice.cached_tokens, names, rows, computed=computed)
        self.works[work] = choice.worker
        tokens = 0 if computed else len(prompt) - choice.cached_tokens
        assert router.load(choice.worker) == loads[choice.worker] + tokens + rows * ANSWER_TOKENS

    @precondition(lambda self: self.works)
    @rule(which=st.integers(0, 100), way=st.sampled_from(["advance", "computed", "row", "end", "end"]))
    def get_on(self, which: int, way: str) -> None:
        work = list(self.works)[which % len(self.works)]
        match way:
            case "advance":
                work.advance(10)
            case "computed":
                work.computed()
            case "row":
                work.end_rows()
            case _:
                work.end()
                del self.works[work]

    @invariant()
    def loads_are_the_work_that_has_not_ended(self) -> None:
        owed = Counter[str]()
        for work, name in self.works.items():
            owed[name] += work.cost
        for name in self.roles:
            assert self.router.load(name) == owed[name]

    @invariant()
    def the_index_is_what_was_told(self) -> None:
        assert {name: set(self.router.cached(name)) for name in self.roles} == self.caches
        assert self.router.indexed_blocks >= len(set().union(*self.caches.values()))

    def teardown(self) -> None:
        for work in self.works:
            work.end()
        assert all(self.router.load(name) == 0 for name in self.roles)
        assert self.router.indexed_blocks == len(set().union(*self.caches.values()))


TestRouterMachine = RouterMachine.TestCase
TestRouterMachine.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
