"""cluster.yaml: what it says, and how each way of saying it wrong is told, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cluster.cluster_file import ClusterFileError, ClusterPlan, read_cluster_file
from engine.cluster.protocol import ClusterControl
from engine.config import EngineConfig

EXAMPLE = Path(__file__).parents[3] / "docs" / "cluster.yaml"
POOLS = "pools:\n  replicas: {workers: 1}\n"


def read(tmp_path: Path, text: str) -> ClusterPlan:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return read_cluster_file(path)


def test_the_example_is_read() -> None:
    plan = read_cluster_file(EXAMPLE)
    assert (plan.address, plan.host, plan.port, plan.start_seconds) == ("local", "127.0.0.1", 8000, 60.0)
    assert plan.control == ClusterControl(prefill=1, decode=1)
    assert [(pool.role, pool.workers, pool.cpus) for pool in plan.pools] == [
        ("prefill", 1, 1.0),
        ("decode", 1, 1.0),
        ("replica", 0, 1.0),
    ]
    assert [pool.config.kv_memory >> 20 for pool in plan.pools] == [256, 512, 256]
    assert all(pool.config.control.max_num_batched_tokens == 512 for pool in plan.pools)


def test_what_the_example_names_but_leaves_out_is_read_too(tmp_path: Path) -> None:
    lines = EXAMPLE.read_text().splitlines()
    named = [line.replace("# ", "", 1) if _is_left_out(line) else line for line in lines]
    plan = read(tmp_path, "\n".join(named))
    assert plan.served_model_name == "chat"
    assert [pool.resources for pool in plan.pools] == [(("prefill_host", 1.0),), (("decode_host", 1.0),), ()]


def _is_left_out(line: str) -> bool:
    key = line.strip().removeprefix("# ")
    return line.strip().startswith("# ") and (key.startswith(("served-model-name:", "resources:", " ")))


def test_a_file_says_no_more_than_it_must(tmp_path: Path) -> None:
    plan = read(tmp_path, POOLS)
    (pool,) = plan.pools
    assert pool.config == EngineConfig(threads=1)
    assert plan.control == ClusterControl(replicas=1)
    assert plan.pool("decode").workers == 0  # one may be asked for later
    assert plan.pool("decode").config == pool.config


def test_threads_follow_cpus(tmp_path: Path) -> None:
    plan = read(tmp_path, "cpus: 3.5\npools:\n  replicas: {workers: 1}\n  decode: {workers: 1, cpus: 0.5}\n")
    assert [pool.config.threads for pool in plan.pools] == [3, 1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "cluster.yaml: is empty: it must have pools"),
        ("model: tiny\n", "cluster.yaml: pools: is missing"),
        ("model: [\n", "cluster.yaml:2: is no YAML: "),
        ("a: b: c\n", "cluster.yaml:1: is no YAML: "),
        ("- pools\n", "cluster.yaml:1: the file: must be keys and values, got a list"),
        (f"modle: tiny\n{POOLS}", "cluster.yaml:1: modle: is no key here: they are address, host, port, "),
        (f"model: tiny\nmodel: tiny\n{POOLS}", "cluster.yaml:2: model: is given twice, first on line 1"),
        (f"model:\n{POOLS}", "cluster.yaml:1: model: must be one value, got none"),
        (f"model: ~\n{POOLS}", "cluster.yaml:1: model: must be one value, got none"),
        (f"model: ''\n{POOLS}", "cluster.yaml:1: model: must be a text, got ''"),
        (f"model: *there\n{POOLS}", "cluster.yaml:1: is no YAML: found undefined alias 'there'"),
        (f"model: tiny\n\tport: 1\n{POOLS}", "cluster.yaml:2: is no YAML: found character"),
        (f"{POOLS}---\n{POOLS}", "cluster.yaml:3: is no YAML: "),
        ("&all\npools: *all\n", "cluster.yaml:2: pools: is no pool: they are prefill, decode, replicas"),
        ("pools: &all\n  decode: *all\n", "cluster.yaml:2: decode: is no key here"),
        (f"model: !!python/object:os.system tiny\nport: 1\nport: 2\n{POOLS}", "cluster.yaml:3: port: is given twice"),
        ("pools:\n", "cluster.yaml:1: pools: must be keys and values, got none"),
        (
            "pools:\n  decode: {workers: 1, resources: }\n",
            "cluster.yaml:2: resources: must be keys and values, got none",
        ),
        (
            "pools:\n  decode: {workers: 1, resources: {CPU: 2}}\n",
            "CPU: is no resource that nodes are started with: cpus s",
        ),
        (
            "pools:\n  decode: {workers: 1, resources: {memory: 2}}\n",
            "memory: is no resource that nodes are started with",
        ),
        (
            "pools:\n  decode: {workers: 1, resources: {'': 2}}\n",
            "resources: is no resource that nodes are started with",
        ),
        (
            "pools:\n  decode: {workers: 1, cpus: 0.10001}\n",
            "cpus: must have at most 4 places after the point, got '0.10",
        ),
        (
            "pools:\n  decode: {workers: 1, cpus: .inf}\n",
            "cpus: must be a number of CPUs from 0.01 to 4096, got '.inf'",
        ),
        ("pools:\n  decode: {workers: 1, gpus: 1.5}\n", "gpus: must be a part of one GPU, or whole ones, got '1.5'"),
        ("pools:\n  decode: {workers: 1.0}\n", "workers: must be a whole number from 0 to 1024, got '1.0'"),
        ("pools:\n  decode: {workers: 1e9}\n", "workers: must be a whole number from 0 to 1024, got '1e9'"),
        ("pools:\n  decode: {workers: 0}\n", "nobody would end a request: decode or replicas needs at least 1 worker"),
        ("kv-memory: -1MiB\npools:\n  decode: {workers: 1}\n", "kv-memory: must be a size such as 512MiB, 2GiB or 1GB"),
        (f"model: [tiny]\n{POOLS}", "cluster.yaml:1: model: must be one value, got a list"),
        (f"port: 70000\n{POOLS}", "cluster.yaml:1: port: must be a whole number from 0 to 65535, got '70000'"),
        (f"\nkv-memory: much\n{POOLS}", "cluster.yaml:2: kv-memory: must be a size such as 512MiB, 2GiB or 1GB, got"),
        (f"dtype: float8\n{POOLS}", "cluster.yaml:1: dtype: must be one of auto, bfloat16, float16, float32, got 'fl"),
        (f"separate: maybe\n{POOLS}", "cluster.yaml:1: separate: must be true or false, got 'maybe'"),
        (f"start-seconds: 0\n{POOLS}", "cluster.yaml:1: start-seconds: must be a number of seconds from 1 to 86400"),
        (f"lease-seconds: 3601\n{POOLS}", "lease-seconds: must be a number of seconds from 0.1 to 3600, got '3601'"),
        (f"local-prefill: 1048577\n{POOLS}", "local-prefill: must be a whole number from 0 to 1048576, got '1048577'"),
        (f"[1]: 2\n{POOLS}", "cluster.yaml:1: the file: a key must be a text, got a list"),
        ("pools: 3\n", "cluster.yaml:1: pools: must be keys and values, got '3'"),
        ("pools: {}\n", "cluster.yaml:1: pools: has none: it must have at least one of prefill, decode, replicas"),
        ("pools:\n  decoder: {workers: 1}\n", "cluster.yaml:2: decoder: is no pool: they are prefill, decode, repli"),
        ("pools:\n  decode: 2\n", "cluster.yaml:2: decode: must be keys and values, got '2'"),
        ("pools:\n  decode: {}\n", "cluster.yaml:2: decode: workers is missing"),
        ("pools:\n  decode:\n    workers: -1\n", "cluster.yaml:3: workers: must be a whole number from 0 to 1024"),
        ("pools:\n  decode: {workers: 1, cpus: 0}\n", "cluster.yaml:2: cpus: must be a number of CPUs from 0.01 to"),
        ("pools:\n  decode: {workers: 1, port: 1}\n", "cluster.yaml:2: port: is said of all pools: it must stand at"),
        ("pools:\n  decode: {workers: 1, max-num-seqs: 9}\n", "max-num-seqs: is said of all pools"),
        ("pools:\n  decode: {workers: 1, resources: {a: 0}}\n", "cluster.yaml:2: a: must be an amount from 0.0001 to"),
        ("pools:\n  prefill: {workers: 1}\n", "cluster.yaml:2: pools: nobody would end a request: decode or replicas"),
        (
            "model: tiny\npools:\n  prefill: {workers: 1}\n  decode:\n    workers: 1\n    model: smollm2-135m\n",
            "cluster.yaml:6: model: must be the same in all pools, got 'tiny' in prefill and 'smollm2-135m' in decode",
        ),
        (
            "pools:\n  prefill:\n    workers: 1\n    block-size: 32\n  decode: {workers: 1}\n",
            "cluster.yaml:4: block-size: must be the same in all pools, got 32 in prefill and its default in decode",
        ),
        (
            "batching: static\npools:\n  prefill: {workers: 1}\n  decode: {workers: 1}\n",
            "cluster.yaml:1: batching: must be continuous where KV is handed over, got 'static'",
        ),
        (
            "allocation: reserved\npools:\n  prefill: {workers: 0}\n  decode: {workers: 1}\n",
            "cluster.yaml:1: allocation: must be paged where KV is handed over, got 'reserved'",
        ),
        (
            "pools:\n  replicas: {workers: 1, device: cuda}\n  decode:\n    workers: 1\n    device: cuda\n",
            "cluster.yaml:5: device: must be cpu where KV is handed over, got 'cuda'",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ClusterFileError) as error:
        read(tmp_path, text)
    assert told in str(error.value)


def test_values_may_be_texts_and_shared(tmp_path: Path) -> None:
    plan = read(
        tmp_path,
        "kv-memory: &much '512MiB'\nport: '8001'\npools:\n  decode: {workers: \"2\", kv-memory: 64MiB}\n"
        "  prefill: {workers: 1, kv-memory: *much, gpus: 0.5, resources: {'node:10.0.0.1': 0.001}}\n",
    )
    assert plan.port == 8001
    assert [(pool.workers, pool.config.kv_memory >> 20, pool.gpus) for pool in plan.pools] == [
        (2, 64, 0),
        (1, 512, 0.5),
    ]
    assert plan.pools[1].resources == (("node:10.0.0.1", 0.001),)


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(ClusterFileError, match=r"none\.yaml: cannot be read: No such file"):
        read_cluster_file(tmp_path / "none.yaml")
    path = tmp_path / "cluster.yaml"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ClusterFileError, match="must be UTF-8"):
        read_cluster_file(path)
    path.write_text("a: " + "[" * 2000)
    with pytest.raises(ClusterFileError, match="is no YAML"):
        read_cluster_file(path)
