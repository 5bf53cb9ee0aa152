"""What is recorded of servers plays back to the same pictures, without anybody's text, whatever became of the file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest

from servers import exposition
from servers.kv_events import Batch, BlockStored, decode, hash_to_builtin, to_builtins
from servers.kv_events import Heard as HeardKv
from servers.reading import lines_known
from servers.slots import Slot, read_slots
from tests.servers import kv_publisher
from tests.servers.pages import EngineFigures, page
from tests.tui.sources.heard import BEGIN, Chance, Clock, fold, take, told
from tui import recorder as line_writer
from tui.recording import RecordingError, is_of_sources, read_recording
from tui.sources.items import Failed, KvLink, KvMessage, Scrape, Slots, SourceHead, encode_item
from tui.sources.recorder import SourceRecorder
from tui.sources.recording import read_glances, read_items
from tui.sources.redaction import Redaction
from tui.sources.source import Source

HEAD = SourceHead(0, "a", "http://a", time=BEGIN)
LOOK = Scrape(0, BEGIN + 1, 0.1, lines_known(page("vllm", [EngineFigures()])))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(line_writer, "BATCH_SECONDS", 0.01)


def read(path):
    reading = read_items(path)
    try:
        return list(reading), reading.note
    finally:
        reading.close()


def recorded(path, items, before=(), source=0):
    """Items that a source hears while it is recorded."""
    made, clock = fold(before, source)
    recorder = SourceRecorder(path, [made], wall=lambda: 1.7e9)
    for item in items:
        take(made, clock, item)
    recorder.close()
    assert not recorder.error
    return made, recorder


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz"])
def test_a_recording_folds_to_the_live_picture_at_every_item(name, tmp_path):
    """But for the items that only say how it began: one head with nothing known."""
    items = Chance(2).items(80)
    live, recorder = recorded(tmp_path / name, items)
    read_back, note = read(tmp_path / name)
    assert (note, recorder.records) == ("", sum(not isinstance(item, SourceHead) for item in items))
    assert read_back[1:] == items
    again, clock = fold(read_back[:1])
    assert told(again.view())["server"][:4] == ("", "", "", "")
    shadow, shadow_clock = fold(())
    for item in items:
        take(again, clock, item)
        take(shadow, shadow_clock, item)
        now, then = told(again.view()), told(shadow.view())
        assert now["server"][:6] == then["server"][:6]
        assert {**now, "server": ()} == {**then, "server": ()}
    assert told(shadow.view()) == told(live.view())


def test_a_recording_that_begins_in_the_middle_has_how_all_stood(tmp_path):
    """The newest figures, slots and KV trees are there at once; what came before is not."""
    chance = Chance(4, kinds=("vllm",))
    before = chance.items(200)
    after = [chance.next() for _ in range(60)]
    live, _ = recorded(tmp_path / "r.jsonl", after, before)
    read_back, _ = read(tmp_path / "r.jsonl")
    state = read_back[: -len(after)]
    assert read_back[-len(after) :] == after
    (then, _), (played, clock) = fold(before), fold(state)
    for step in range(len(after) + 1):
        now, was = told(played.view()), told(live.view(len(before) + step))
        assert now["server"][:4] == was["server"][:4]
        assert (now["slots"], now["looks"][-1][1:]) == (was["slots"], was["looks"][-1][1:])
        assert [kv[:5] + kv[6:] for kv in now["kv"]] == [kv[:5] + kv[6:] for kv in was["kv"]]
        assert played.view().link.phase == live.view(len(before) + step).link.phase
        if step < len(after):
            take(played, clock, after[step])
    assert then.view().link.phase == live.view(len(before)).link.phase


def test_a_fleet_lies_in_one_file(tmp_path):
    chances = [Chance(1, number, kv=1) for number in range(3)]
    clock = Clock()
    sources = [Source(f"s{number}", f"http://127.0.0.1:{number}", clock, number) for number in range(3)]
    recorder = SourceRecorder(tmp_path / "r.jsonl.gz", sources)
    made = sorted((item for chance in chances for item in chance.items(40)), key=lambda item: item.time)
    for item in made:
        take(sources[item.source], clock, item)
    recorder.close()
    items, _ = read(tmp_path / "r.jsonl.gz")
    assert [(type(item), item.source, item.name) for item in items[:3]] == [
        (SourceHead, number, f"s{number}") for number in range(3)
    ]
    assert items[3:] == made
    sources[0].take(next(item for item in made if item.source == 0))  # nobody listens any more
    assert sources[0].listener is None


def test_what_cannot_be_written_is_written_as_unreadable(monkeypatch, tmp_path):
    """The recording goes on, and shows the same as the screen did."""
    odd = KvMessage(0, BEGIN + 1, "tcp://127.0.0.1:5557", {"kind": "missed", "first": 1, "last": 1 << 70})
    monkeypatch.setattr(exposition, "MAX_PAGE", len(LOOK.text) * 2)
    long = Scrape(0, BEGIN + 2, 0.1, LOOK.text * 3)
    live, recorder = recorded(tmp_path / "r.jsonl", [HEAD, LOOK, odd, long, Failed(0, BEGIN + 3, "locked", "a key")])
    assert recorder.records == 4
    again, _ = fold(read(tmp_path / "r.jsonl")[0])
    for seq in range(2, live.items + 1):
        now, then = again.view(seq + 1), live.view(seq)
        assert now.link.phase == then.link.phase
        assert [(kv.phase, kv.heard) for kv in now.kv] == [(kv.phase, kv.heard) for kv in then.kv]
    assert live.view(3).kv[0].phase == "failing"
    assert live.view(4).link.phase == "failing"


SECRETS = {
    "key": "sk-planted-0123456789abcdef",
    "header": "planted-header-value",
    "user": "planted-user",
    "password": "planted-password",
    "query": "planted-query",
    "prompt": "planted prompt of somebody",
    "home": "planted-home",
    "folder": "planted-folder",
    "ca": "planted-ca",
}
PATH = f"/home/{SECRETS['home']}/{SECRETS['folder']}/weights-7b"
TOKENS = (48_112_001, 48_112_002, 48_112_003, 48_112_004)
URL = f"http://{SECRETS['user']}:{SECRETS['password']}@127.0.0.1:8000/v1?token={SECRETS['query']}"


@pytest.mark.parametrize("encoding", kv_publisher.ENCODINGS)
def test_no_text_no_keys_and_no_folders_are_recorded(encoding, tmp_path):
    """What is planted in all that a server sends, and in how it is asked, is nowhere in the file."""
    rows = [{"id": 0, "is_processing": True, "n_ctx": 512, "prompt": SECRETS["prompt"], "id_task": 4}]
    slots = read_slots(json.dumps(rows).encode())
    event = BlockStored((11, 12), None, TOKENS, 2, lora=f"/mnt/{SECRETS['folder']}/adapter")
    batch = decode(kv_publisher.encode((event,), encoding, 5.0))
    text = page("vllm", [EngineFigures(model=PATH)])
    text += f'# HELP {SECRETS["prompt"]}\nother_metric{{prompt="{SECRETS["prompt"]}"}} 1\n'
    items = [
        SourceHead(0, URL, URL, "vllm", "0.11", time=BEGIN),
        Scrape(0, BEGIN, 0.1, text),
        Slots(0, BEGIN, tuple(Slot(row.id, row.busy, row.task, row.context) for row in slots)),
        KvLink(0, BEGIN, f"ipc:///home/{SECRETS['home']}/{SECRETS['folder']}/kv.sock", "failing", f"no {PATH}"),
        KvMessage(0, BEGIN, f"tcp://{SECRETS['user']}@127.0.0.1:5557", to_builtins(HeardKv(0, batch))),
        KvMessage(0, BEGIN, "tcp://127.0.0.1:5558", to_builtins(HeardKv(1, batch)) | {"token_ids": list(TOKENS)}),
        Failed(0, BEGIN, "failing", f"{URL}: {SECRETS['header']} is wrong"),
        Failed(0, BEGIN, "locked", f"Bearer {SECRETS['key']} is refused"),
        Failed(0, BEGIN, "failing", f"cannot read /etc/{SECRETS['ca']}/{SECRETS['folder']}/ca.pem: {SECRETS['key']}"),
    ]
    source, clock = fold(items[:5])  # a part is how it stood when the recording began, the other comes while it runs
    recorder = SourceRecorder(tmp_path / "r.jsonl", [source], (SECRETS["header"], SECRETS["password"]))
    for item in items:
        take(source, clock, item)
    recorder.close()
    written = (tmp_path / "r.jsonl").read_text()
    for what, secret in SECRETS.items():
        found = written.find(secret if what not in ("folder", "ca") else f"{secret}/")
        assert found < 0, (what, written[max(0, found - 80) : found + 80])
    for token in TOKENS:
        assert str(token) not in written
    again, _ = fold(read(tmp_path / "r.jsonl")[0])
    view = again.view(again.items - 3)
    assert [engine.model for engine in view.engines] == ["weights-7b"]
    assert [run.lora for kv in view.kv for run in kv.tree.runs()] == ["adapter", "adapter"]
    assert view.url == "http://127.0.0.1:8000/v1"
    assert view.measure(60.0) is not None


@pytest.mark.parametrize("name", [lambda number: number << 52, lambda number: (number << 52).to_bytes(32, "big")])
def test_a_short_secret_is_found_in_no_hash(name, tmp_path):
    """As `--header 'X-Tenant: 1234'`: by chance its digits are in names of blocks, which hold nobody's words."""
    hashes = [name(number) for number in range(1_000, 1_400)]
    by_chance = [str(hash_to_builtin(hashes[at]))[6:12] for at in (7, 307)]

    def message(sequence):
        chain = hashes[sequence * 100 : sequence * 100 + 100]
        event = BlockStored(tuple(chain), hashes[sequence * 100 - 1] if sequence else None, (), 16, lora="of 1234")
        return KvMessage(
            0, BEGIN + sequence, "tcp://127.0.0.1:5557", to_builtins(HeardKv(sequence, Batch(1.0, (event,))))
        )

    source, clock = fold([HEAD, message(0), message(1)])
    recorder = SourceRecorder(tmp_path / "r.jsonl", [source], ("1234", *by_chance))
    for sequence in (2, 3):
        take(source, clock, message(sequence))
    recorder.close()
    again, _ = fold(read(tmp_path / "r.jsonl")[0])
    (kv,) = again.view().kv
    assert kv.phase == "live"
    assert set(kv.tree.hashes()) == set(hashes)
    assert {run.lora for run in kv.tree.runs()} == {"of …"}
    odd = Redaction(["12345"]).of(KvMessage(0, 1.0, "tcp://h:1", {"block_hashes": ["words of 12345"], "hash": [12345]}))
    assert odd.payload == {"block_hashes": ["words of …"], "hash": [12345]}


def test_names_that_are_replaced_stay_apart():
    redaction = Redaction()
    a, b = EngineFigures(model="/home/a/x/model"), EngineFigures(model="/home/b/y/model")
    hub, windows = EngineFigures(model="meta-llama/Llama-3.1-8B"), EngineFigures(model="C:\\models\\m")
    a.running, b.running, hub.running, windows.running = 1, 2, 3, 4
    items = [redaction.of(Scrape(0, 1.0, 0.1, page("vllm", [a, b, hub, windows]))) for _ in range(2)]
    assert items[0] == items[1]
    source, _ = fold(items)
    reading = source.view().looks.newest.reading
    assert {engine.model: value for engine, value in reading.gauges["running"].items()} == {
        "model": 1, "model (2)": 2, "meta-llama/Llama-3.1-8B": 3, "m": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("http://u:p@h:1/v1/models?key=x#y", "http://h:1/v1/models"),
        ("/prometheus/metrics answers HTTP 503", "/prometheus/metrics answers HTTP 503"),
        ("cannot read /home/me/keys/ca.pem: denied", "cannot read ca.pem: denied"),
        ("cannot read ~/keys/ca.pem", "cannot read ca.pem"),
        ("Authorization: Bearer abc", "Authorization: …"),
        ("no answer within 5 s", "no answer within 5 s"),
    ],
)
def test_reasons_are_kept_without_what_is_private(said, written):
    assert Redaction().of(Failed(0, 1.0, "failing", said)).reason == written


# What is wrong with a file is said


def lines(items):
    """A file of them."""
    return b"".join(encode_item(item) + b"\n" for item in items)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "r is empty"),
        (lines([LOOK]), "line 1 names no server, and a recording begins with one"),
        (lines([msgspec.structs.replace(HEAD, format=2)]), "by a newer version: format 2, this paged-top knows 1"),
        (b'{"type":"source","format":7,"new":1}\n', "recorded by a newer version: format 7"),
        (lines([HEAD, msgspec.structs.replace(LOOK, source=3)]), "line 2 tells of server 3, which was not named"),
        (lines([HEAD, LOOK]) + b'{"type":"scrape"}\n', "line 3 does not decode (Object missing required field"),
        (lines([HEAD]) + b'{"type":"failed","source":0,"time":1,"phase":"odd","reason":""}\n', "line 2 does not"),
        (b"\x7fELF", "r is not a recording: it begins with"),
        (b'{"a": 1}\n', "r is not a recording: line 1 is"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(data, words, tmp_path):
    path = tmp_path / "r"
    path.write_bytes(data)
    with pytest.raises(RecordingError) as caught:
        read(path)
    assert words in str(caught.value)


def test_a_cut_file_is_read_to_the_cut(tmp_path):
    items = Chance(5).items(60)
    whole = lines(items)
    path = tmp_path / "r"
    for data in (whole[:-30], gzip.compress(whole)[:-40]):
        path.write_bytes(data)
        found, note = read(path)
        assert found == items[: len(found)]
        assert len(found) > 20
        assert note.startswith(("truncated at line", "damaged"))
        assert len(list(read_glances(path))) == len(found)


def test_each_kind_of_recording_is_refused_by_the_other_reader(tmp_path):
    engine, servers = Path(__file__).parents[1] / "recording.jsonl.gz", tmp_path / "servers"
    servers.write_bytes(b"\xef\xbb\xbf\n" + lines([HEAD, LOOK]))
    assert (is_of_sources(engine), is_of_sources(servers), is_of_sources(tmp_path / "none")) == (False, True, False)
    with pytest.raises(RecordingError, match="is a recording of an engine's steps, and not of servers' metrics"):
        read(engine)
    with pytest.raises(RecordingError, match="is a recording of servers' metrics, and not of an engine's steps"):
        next(read_recording(servers))
    assert read(servers) == ([HEAD, LOOK], "")
