"""cluster.yaml: which engines a cluster has, what each may take, and where they are placed. Errors name file and line.

Keys are those of `paged-engine serve` without their dashes, and their values are read by the same readers. What is said
at the top holds in every pool. A pool may say otherwise of its own engines, but for what they must have in common with
the others, and for the control: that is switched for all together while they run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec

from engine.cli import LEAST_MODEL_LEN, between, number, size, size_or_none
from engine.cluster.options import LEAST_LEASE, MOST_LEASE
from engine.cluster.protocol import MOST_LOCAL_PREFILL, MOST_WORKERS, ClusterControl, Role, Routing
from engine.cluster.sizes import FIELDS, HANDING
from engine.config import EngineConfig
from engine.protocol import (
    MAX_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    MAX_WAIT,
    Allocation,
    Batching,
    Control,
    Preempt,
    Quantize,
    ReservedFit,
    SchedulingPolicy,
)
from engine.transfer.needs import unmet

Reader = Callable[[str], Any]
MOST_CPUS = 4096.0
MOST_SECONDS = 86_400.0
_SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_seconds = number(0, MOST_SECONDS, "a number of seconds")


def _one_of(*allowed: str) -> Reader:
    def choice(text: str) -> str:
        if text not in allowed:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(allowed)}, got {text!r}")
        return text

    return choice


def _switch(text: str) -> bool:
    if text.lower() not in _SWITCHES:
        raise argparse.ArgumentTypeError(f"must be true or false, got {text!r}")
    return _SWITCHES[text.lower()]


def _amount(least: float, most: float, what: str) -> Reader:
    """Of a resource, in the parts that Ray counts."""
    any_amount = number(least, most, what)

    def amount(text: str) -> float:
        value = any_amount(text)
        if value != round(value, 4):
            raise argparse.ArgumentTypeError(f"must have at most 4 places after the point, got {text!r}")
        return value

    return amount


def _gpus(text: str) -> float:
    value = float(_amount(0, MOST_CPUS, "a number of GPUs")(text))
    if value > 1 and not value.is_integer():
        raise argparse.ArgumentTypeError(f"must be a part of one GPU, or whole ones, got {text!r}")
    return value


def _text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("must be a text, got ''")
    return text


# Of each engine, by the field of EngineConfig or Control that the key is named after.
ENGINE: dict[str, Reader] = {
    "model": _text,
    "dtype": _one_of("auto", "bfloat16", "float16", "float32"),
    "quantize": _one_of(*get_args(Quantize)),
    "device": _one_of("auto", "cpu", "cuda"),
    "block-size": between(1, 1024),
    "kv-memory": size,
    "swap-space": size_or_none,
    "max-model-len": between(LEAST_MODEL_LEN),
    "seed": between(0),
    "threads": between(1, 1024),
    "check-invariants": _switch,
    "check-every": between(0),
    "crash-dir": _text,
    "step-timeout": _seconds,
}
CONTROL: dict[str, Reader] = {
    "batching": _one_of(*get_args(Batching)),
    "allocation": _one_of(*get_args(Allocation)),
    "reserved-fit": _one_of(*get_args(ReservedFit)),
    "prefix-cache": _switch,
    "chunked-prefill": _switch,
    "max-num-seqs": between(1, MAX_NUM_SEQS),
    "max-num-batched-tokens": between(1, MAX_BATCHED_TOKENS),
    "max-prefill-chunk": between(0, MAX_BATCHED_TOKENS),
    "scheduling-policy": _one_of(*get_args(SchedulingPolicy)),
    "max-wait": number(0, MAX_WAIT, "a number of seconds"),
    "preempt": _one_of(*get_args(Preempt)),
}
# Of a pool's place on the Ray cluster: what one engine takes.
POOL: dict[str, Reader] = {
    "workers": between(0, MOST_WORKERS),
    "cpus": _amount(0.01, MOST_CPUS, "a number of CPUs"),
    "gpus": _gpus,
}
# Of the cluster as a whole.
CLUSTER: dict[str, Reader] = {
    "address": _text,
    "host": _text,
    "port": between(0, 65535),
    "served-model-name": _text,
    "separate": _switch,
    "routing": _one_of(*get_args(Routing)),
    "local-prefill": between(0, MOST_LOCAL_PREFILL),
    "lease-seconds": number(LEAST_LEASE, MOST_LEASE, "a number of seconds"),
    "transfer-seconds": number(1, MOST_SECONDS, "a number of seconds"),
    "start-seconds": number(1, MOST_SECONDS, "a number of seconds"),
}
_OF_CONTROL = ("separate", "routing", "local-prefill")
_OF_ENGINES = ("lease-seconds", "transfer-seconds")
_OF_PLAN = ("address", "host", "port", "served-model-name", "start-seconds")
COMMON = ("model", "dtype", "quantize", "block-size", "seed")  # engines that differ in one answer differently
OF_POOLS = (  # fields of EngineConfig that pools may differ in; the others are the cluster's
    "device",
    "kv_memory",
    "swap_space",
    "max_model_len",
    "threads",
    "check_invariants",
    "check_every",
    "crash_dir",
    "step_timeout",
)
LEAST_AMOUNT, MOST_AMOUNT = 0.0001, 1e9  # of a resource that an operator has named; Ray counts them in the least
# What Ray counts without being told so. Processors have keys of their own, and memory is Ray's own business.
_RAYS = {"CPU": "cpus", "GPU": "gpus", "memory": "", "object_store_memory": ""}
_NULL = "tag:yaml.org,2002:null"


class ClusterFileError(ValueError):
    """What is wrong with the file, where, and what is allowed."""


class PoolPlan(msgspec.Struct, frozen=True):
    """`cpus`, `gpus` and `resources` (by name) are what one of its engines takes of a Ray node."""

    role: Role
    workers: int
    config: EngineConfig
    cpus: float = 1.0
    gpus: float = 0.0
    resources: tuple[tuple[str, float], ...] = ()


class ClusterPlan(msgspec.Struct, frozen=True):
    """What a file asks for. `start_seconds`: that Ray may take to start an engine's actor."""

    pools: tuple[PoolPlan, ...]
    control: ClusterControl
    address: str = "local"
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str = ""  # "": the model's
    start_seconds: float = 60.0

    def pool(self, role: Role) -> PoolPlan:
        """The plan of a role; one that the file does not name is as large as none, and made like the first."""
        for pool in self.pools:
            if pool.role == role:
                return pool
        return msgspec.structs.replace(self.pools[0], role=role, workers=0, resources=())

    def own(self, role: Role) -> dict[str, Any]:
        """What engines of a role have of their own, by the fields of EngineConfig."""
        config = self.pool(role).config
        return {field: getattr(config, field) for field in OF_POOLS}


class _Given(NamedTuple):
    """A value, and the line on which its key stands."""

    line: int
    value: Any


_Values = dict[str, _Given]


def read_cluster_file(path: Path) -> ClusterPlan:
    """Raises ClusterFileError."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ClusterFileError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ClusterFileError(f"{path}: must be UTF-8") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = 1 if error.problem_mark is None else error.problem_mark.line + 1
        raise ClusterFileError(f"{path}:{line}: is no YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ClusterFileError(f"{path}: is no YAML: {str(error).splitlines()[0]}") from None
    return _Reading(path).cluster(root)


class _Reading:
    """Nodes of one file, to values."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def cluster(self, root: Any) -> ClusterPlan:
        if root is None:
            raise ClusterFileError(f"{self._path}: is empty: it must have pools")
        nodes = self._mapping(root, "the file")
        if "pools" not in nodes:
            raise ClusterFileError(f"{self._path}: pools: is missing: it must say how many engines there are to be")
        _, pools_node = nodes.pop("pools")
        shared = {**ENGINE, **CONTROL}
        given = self._scalars(nodes, {**CLUSTER, **shared, **_without(POOL, "workers")}, ("pools",))
        pools = self._pools(pools_node, {key: one for key, one in given.items() if key in (*shared, *POOL)})
        self._check_common(pools)
        of_all = {key: one.value for key, one in given.items() if key in CLUSTER}
        return _plan([(role, values) for role, values in pools.items()], of_all)

    def _pools(self, node: Any, of_all: _Values) -> dict[Role, _Values]:
        roles: dict[str, Role] = {field: role for role, field in FIELDS.items()}
        found: dict[Role, _Values] = {}
        keys = {**POOL, **ENGINE}
        pools = self._mapping(node, "pools")
        for name, (line, pool_node) in pools.items():
            if name not in roles:
                raise self._error(line, name, f"is no pool: they are {_listed(roles)}")
            nodes = self._mapping(pool_node, name)
            resources = self._resources(*nodes.pop("resources")) if "resources" in nodes else None
            values = {**of_all, **self._scalars(nodes, keys, ("resources",))}
            if "workers" not in values:
                raise self._error(line, name, "workers is missing: how many engines the pool has")
            if resources is not None:
                values["resources"] = resources
            found[roles[name]] = values
        line = node.start_mark.line + 1
        if not found:
            raise self._error(line, "pools", f"has none: it must have at least one of {_listed(roles)}")
        sizes = {role: values["workers"].value for role, values in found.items()}
        for role in (role for role in HANDING if sizes.get(role)):
            given = {key: one.value for key, one in found[role].items()}
            need = unmet(Control(**_fields(given, CONTROL)), given.get("device", "auto"))
            if need is not None:
                wrong = f"must be {need.must} where KV is handed over, got {need.got!r}"
                raise self._error(found[role][need.setting].line, need.setting, wrong)
        if not sizes.get("decode") and not sizes.get("replica"):
            raise self._error(line, "pools", "nobody would end a request: decode or replicas needs at least 1 worker")
        return found

    def _resources(self, line: int, node: Any) -> _Given:
        """Amounts of resources that nodes of the Ray cluster were started with."""
        nodes = self._mapping(node, "resources")
        amount = _amount(LEAST_AMOUNT, MOST_AMOUNT, "an amount")
        for name, (of_name, _) in nodes.items():
            if name in _RAYS or not name:
                instead = f": {_RAYS[name]} says it" if _RAYS.get(name) else ""
                raise self._error(of_name, name or "resources", f"is no resource that nodes are started with{instead}")
        values = self._scalars(nodes, dict.fromkeys(nodes, amount), ())
        return _Given(line, tuple((name, one.value) for name, one in values.items()))

    def _mapping(self, node: Any, what: str) -> dict[str, tuple[int, Any]]:
        """The line of each key, and its node."""
        if node.id != "mapping":
            raise self._error(node.start_mark.line + 1, what, f"must be keys and values, got {_told(node)}")
        found: dict[str, tuple[int, Any]] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.id != "scalar":
                raise self._error(line, what, f"a key must be a text, got {_told(key_node)}")
            key = str(key_node.value)
            if key in found:
                raise self._error(line, key, f"is given twice, first on line {found[key][0]}")
            found[key] = (line, value_node)
        return found

    def _scalars(
        self, nodes: Mapping[str, tuple[int, Any]], readers: Mapping[str, Reader], others: tuple[str, ...]
    ) -> _Values:
        values: _Values = {}
        for key, (line, node) in nodes.items():
            if key not in readers and key in (*CLUSTER, *CONTROL):
                raise self._error(line, key, "is said of all pools: it must stand at the top of the file")
            if key not in readers:
                raise self._error(line, key, f"is no key here: they are {_listed((*readers, *others))}")
            if node.id != "scalar" or node.tag == _NULL:
                raise self._error(line, key, f"must be one value, got {_told(node)}")
            try:
                values[key] = _Given(line, readers[key](str(node.value)))
            except argparse.ArgumentTypeError as error:
                raise self._error(line, key, str(error)) from None
        return values

    def _check_common(self, pools: Mapping[Role, _Values]) -> None:
        """Raise ClusterFileError where two pools' engines would not answer alike."""
        named = list(pools.items())
        for role, values in named[1:]:
            for key in COMMON:
                here, there = values.get(key), named[0][1].get(key)
                if (here and here.value) != (there and there.value):
                    line = here.line if here is not None else there.line if there is not None else 1
                    first, other = FIELDS[named[0][0]], FIELDS[role]
                    told = f"{_value(there)} in {first} and {_value(here)} in {other}"
                    raise self._error(line, key, f"must be the same in all pools, got {told}")

    def _error(self, line: int, key: str, what: str) -> ClusterFileError:
        return ClusterFileError(f"{self._path}:{line}: {key}: {what}")


def _plan(pools: list[tuple[Role, _Values]], of_all: dict[str, Any]) -> ClusterPlan:
    plans = tuple(_pool_plan(role, values, _fields(of_all, _OF_ENGINES)) for role, values in pools)
    sizes = {FIELDS[plan.role]: plan.workers for plan in plans}
    control = msgspec.structs.replace(ClusterControl(**_fields(of_all, _OF_CONTROL)), **sizes)
    return ClusterPlan(plans, control, **_fields(of_all, _OF_PLAN))


def _pool_plan(role: Role, values: _Values, shared: dict[str, Any]) -> PoolPlan:
    given = {key: one.value for key, one in values.items()}
    plan = PoolPlan(role, given["workers"], EngineConfig(), **_fields(given, ("cpus", "gpus", "resources")))
    engine = {"threads": max(1, int(plan.cpus)), **_fields(given, ENGINE), **shared}
    config = EngineConfig(control=Control(**_fields(given, CONTROL)), **engine)
    return msgspec.structs.replace(plan, config=config)


def _fields(values: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Those of `keys` that are given, by the names of the fields."""
    return {key.replace("-", "_"): values[key] for key in keys if key in values}


def _without(readers: Mapping[str, Reader], key: str) -> dict[str, Reader]:
    return {name: reader for name, reader in readers.items() if name != key}


def _listed(names: Any) -> str:
    return ", ".join(names)


def _value(given: _Given | None) -> str:
    return "its default" if given is None else repr(given.value)


def _told(node: Any) -> str:
    if node.tag == _NULL:
        return "none"
    return {"mapping": "keys and values", "sequence": "a list"}.get(node.id, repr(node.value))
