"""What strangers send takes a bounded part of memory, whatever it is and for however long."""

from __future__ import annotations

import re
import tracemalloc

import pytest

from servers import exposition, sized_cache
from servers.looks import Look, Looks
from servers.reading import lines_known, read
from servers.sized_cache import SizedCache
from tui.sources.items import Scrape, SourceHead
from tui.sources.source import Source

RUNNING = "vllm:num_requests_running"


def test_a_cache_makes_again_what_it_had_no_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sized_cache, "MOST_BYTES", 1_000)
    made: list[str] = []

    def upper(text: str) -> str:
        made.append(text)
        return text.upper()

    cache = SizedCache(upper, lambda text, found: 2 * len(text))
    assert [cache[text] for text in ("a" * 50, "b" * 50, "a" * 50)] == ["A" * 50, "B" * 50, "A" * 50]
    assert [text[0] for text in made] == ["a", "b"]
    assert cache["c" * 300] == "C" * 300  # 800 with its entry: the two others go
    assert list(cache) == ["c" * 300]
    assert cache["d" * 900] == "D" * 900  # more than there is room for: not kept
    assert cache.bytes <= 1_000
    assert sum(200 + 2 * len(text) for text in cache) == cache.bytes


def test_what_cannot_be_made_is_not_kept() -> None:
    cache = SizedCache(lambda text: int(text), lambda text, found: 0)
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            cache["x"]
    assert not cache


@pytest.mark.parametrize("reads", [read, lines_known])
def test_a_line_beyond_any_servers_is_told(reads) -> None:
    fits = f'{RUNNING}{{model_name="{"m" * 8_000}"}} 1'
    reads(f"{fits}\n")
    with pytest.raises(ValueError, match=re.escape(f"a line of metrics of 20,042 characters, {RUNNING}; at most")):
        reads(f'{RUNNING}{{model_name="{"m" * 20_000}"}} 1\n')
    reads(
        f'# HELP {RUNNING} {"m" * 20_000}\nother{{model_name="{"m" * 20_000}"}} 1\n{RUNNING} 1\n'
    )  # nobody reads these


def page(look: int) -> str:
    """Labels of 4,000 characters that are others at every look, in every kind of series."""
    label = f"{look}".ljust(4_000, "m")
    return (
        f'{RUNNING}{{model_name="{label}"}} 1\n'
        f'vllm:generation_tokens_total{{model_name="{label}"}} {look}\n'
        f'vllm:time_to_first_token_seconds_bucket{{le="1.0",model_name="{label}"}} {look}\n'
        f'vllm:time_to_first_token_seconds_bucket{{le="+Inf",model_name="{label}"}} {look}\n'
    )


def test_labels_that_are_others_at_every_look_take_no_more_than_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sized_cache, "MOST_BYTES", 100_000)
    monkeypatch.setattr("servers.looks.MOST_BYTES", 200_000)
    monkeypatch.setattr("servers.looks.LAYOUT_BYTES", 200_000)
    source = Source("a", "http://127.0.0.1:1", lambda: 0.0, budget=300_000)
    source.take(SourceHead(0, "a", "http://127.0.0.1:1", "vllm"))
    tracemalloc.start()
    try:
        sizes = []
        for look in range(120):
            source.take(Scrape(0, float(look), 0.01, page(look)))
            if look % 20 == 19:
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(sizes) < 1_200_000, sizes  # all 120 would take 1,900,000
    view = source.view()
    assert view.link.phase == "live"
    assert view.looks.newest is not None
    assert len(view.looks) < 20


def test_two_looks_are_kept_however_large_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servers.looks.MOST_BYTES", 10)
    looks = Looks()
    for look in range(4):
        looks.add(Look(float(look), read(f'{RUNNING}{{model_name="m"}} 1\nvllm:generation_tokens_total {10 * look}\n')))
    measured = looks.measure(10.0)
    assert measured is not None
    assert measured.rate("generation_tokens") == 10.0


def test_a_page_of_many_long_lines_is_read_again_and_again_from_what_is_kept() -> None:
    lines = "".join(f'{RUNNING}{{model_name="{"m" * 200}",engine="{engine}"}} 1\n' for engine in range(1_000))
    read(lines)
    kept = exposition._series.bytes
    read(lines)
    assert exposition._series.bytes == kept
