"""The readers of what other servers say: their metrics, KV events and slots, and recordings of these."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

from servers.kv_events import Batch, BlockStored, Heard, decode, from_builtins, to_builtins
from servers.kv_tree import KvTree
from servers.looks import Look, Looks
from servers.reading import lines_known, read
from servers.slots import read_slots
from tests.fuzz.target import Wrong, jsons
from tests.servers import kv_publisher
from tests.servers.pages import KINDS, EngineFigures, page
from tests.tui.sources.heard import Chance, Clock, fold
from tui.recording import RecordingError
from tui.sources.items import SourceHead, encode_item
from tui.sources.recording import read_glances, read_items
from tui.sources.redaction import Redaction
from tui.sources.source import Source

# Metrics


def page_seeds() -> list[bytes]:
    engines = [EngineFigures(rank=str(rank), running=rank, kv_usage=0.25) for rank in range(2)]
    for engine in engines:
        engine.serve(3)
    alone = ("tgi", "llama.cpp", "triton", "tensorrt-llm")
    return [page(kind, engines[:1] if kind in alone else engines).encode() for kind in KINDS]


def read_page(data: bytes, folder: Path) -> None:
    """As a watcher has it: what is kept of a page reads as the page does, and can be laid beside a sound one."""
    text = data.decode("utf-8", "replace")
    found = read(text)
    kept = read(lines_known(text))
    if (None if found is None else (found.layout, repr(found.values))) != (
        None if kept is None else (kept.layout, repr(kept.values))
    ):
        raise Wrong("what is kept of a page reads otherwise")
    if found is None:
        return
    looks = Looks([Look(0.0, found), Look(1.0, read(page(found.kind, [EngineFigures()]))), Look(2.0, found)])  # type: ignore[arg-type]
    for engine in (None, *found.engines):
        measures = looks.measure(5.0, engine)
        for term in measures.histograms if measures is not None else ():
            assert measures is not None
            measures.at_most(term, 99)
            measures.mean(term)
    looks.series("generation_tokens", 2.0, 5)
    looks.series("running", 2.0, 5)


# KV events


def kv_seeds() -> list[bytes]:
    cache = kv_publisher.PrefixCache(random.Random(5), media=("GPU", "CPU"))
    events = [event for _ in range(9) for event in cache.step()]
    events.append(BlockStored((7,), None, (1, 2, 3, 4), 4, lora="adapter", medium="GPU", group=1))
    return [kv_publisher.encode(events, encoding, 1.5e9, 3) for encoding in kv_publisher.ENCODINGS]


def read_kv(data: bytes, folder: Path) -> None:
    """Decode and fold it; what a recording keeps of it folds to the same tree, also from a state."""
    batch = decode(data)
    bare = _without_tokens(batch)
    tree, other = KvTree(), KvTree()
    for sequence, one in enumerate((_first_batch(), batch)):
        tree.take(Heard(sequence, one))
    payload = json.loads(json.dumps(to_builtins(Heard(1, batch))))
    other.take(Heard(0, _without_tokens(_first_batch())))
    other = KvTree.from_state(json.loads(json.dumps(other.to_state())))
    message = from_builtins(payload)
    if message != Heard(1, bare):
        raise Wrong(f"{message} was {bare}")
    other.take(message)
    told = list(tree.runs())
    if (told, tree.churn, tree.complete) != (list(other.runs()), other.churn, other.complete):
        raise Wrong("what is recorded folds to another tree")


def _first_batch() -> Batch:
    return decode(kv_seeds()[1])


def _without_tokens(batch: Batch) -> Batch:
    events = (replace(event, token_ids=()) if isinstance(event, BlockStored) else event for event in batch.events)
    return replace(batch, events=tuple(events))


# Slots


def slots_seeds() -> list[bytes]:
    new = [
        {"id": 0, "id_task": 4, "n_ctx": 512, "is_processing": True, "prompt": "x", "next_token": {"n_decoded": 5}},
        {"id": 1, "n_ctx": 512, "is_processing": False, "next_token": [{"n_decoded": 0}], "n_prompt_tokens": 9},
    ]
    old = [{"id": 0, "task_id": 4, "n_ctx": 512, "state": 1, "n_decoded": 3}]
    return jsons(new, old, [])


def read_rows(data: bytes, folder: Path) -> None:
    for slot in read_slots(data):
        if not isinstance(slot.busy, bool):
            raise Wrong(f"{slot}")


# Recordings


def recording_seeds() -> list[bytes]:
    made = []
    for seed, kinds in ((1, ("llama.cpp", "tgi")), (2, ("sglang", "vllm"))):
        chance = Chance(seed, kinds=kinds)  # type: ignore[arg-type]
        chance.engines = chance.engines[:1]
        items = chance.items(25)
        source, _ = fold(items)
        items = [*source.state(1.7e9), *(chance.next() for _ in range(12))]
        made.append(b"".join(encode_item(item) + b"\n" for item in items))
    return made


def read_sources(data: bytes, folder: Path) -> None:
    """Fold it as the player does: whatever it says, there is a picture, now and of a moment before."""
    path = folder / "recording"
    path.write_bytes(data)
    clock, sources, redaction = Clock(), dict[int, Source](), Redaction(["sk-secret"])
    reading = read_items(path)
    failed: RecordingError | None = None
    try:
        for item in reading:
            if isinstance(item, SourceHead) and item.source not in sources:
                sources[item.source] = Source(item.name, item.url, clock, item.source)
            sources[item.source].take(item)
            encode_item(redaction.of(item))
    except RecordingError as error:
        failed = error
    finally:
        reading.close()
    for source in sources.values():
        for seq in {source.items // 2, max(0, source.items - 1)}:
            view = source.view(seq)
            [list(kv.tree.runs()) for kv in view.kv]
        view = source.view()
        view.measure(60.0)
        [list(kv.tree.runs()) for kv in view.kv]
    glances = read_glances(path)
    try:
        list(glances)
    finally:
        glances.close()
    if failed is not None:
        raise failed
