"""Works are the same for everyone, new in every round, and as large as they say."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.works import RAGGED_CAP, WORKS, Work, make_work

SIZES = {"burst": (64, 256, 64 * 64), "single": (1, 64, 128), "shared-prefix": (64, 1024, 64 * 64)}


@pytest.mark.parametrize("name", WORKS)
def test_a_work_follows_from_its_seed(name):
    assert make_work(name, "1", 49_152) == make_work(name, "1", 49_152)
    assert not set(make_work(name, "1", 49_152).prompts) & set(make_work(name, "2", 49_152).prompts)


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_works_have_the_sizes_of_the_issue(name, size):
    work = make_work(name, "1", 49_152)
    assert (len(work.prompts), *{len(prompt) for prompt in work.prompts}, work.output_tokens) == size
    assert min(map(min, work.prompts)) >= 256
    assert max(map(max, work.prompts)) < 49_152


def test_ragged_outputs_are_the_traces():
    work = make_work("ragged", "1", 49_152)
    assert len(work.prompts) == len(work.outputs) == 256
    assert {len(prompt) for prompt in work.prompts} == {64}
    assert max(work.outputs) == RAGGED_CAP
    assert 115 <= statistics.median(work.outputs) <= 165  # the whole trace: 129, the excerpt: 138.5
    assert make_work("ragged", "2", 49_152).outputs != work.outputs


def test_shared_tokens_count_once():
    work = make_work("shared-prefix", "1", 49_152)
    assert work.distinct_tokens == pytest.approx(960 + 64 * 64, abs=8)  # own parts may begin alike by chance
    assert Work("", ((1, 2, 3), (9,), (1, 2, 4, 5), (1, 2, 3)), (1,) * 4).distinct_tokens == 3 + 1 + 2


@pytest.mark.parametrize("name", WORKS)
def test_scale_makes_a_work_smaller(name):
    work = make_work(name, "1", 259, 0.05)
    assert 1 <= len(work.prompts) <= 13
    assert min(work.outputs) >= 2
    assert max(map(max, work.prompts)) < 259
    assert work.output_tokens < 0.05 * make_work(name, "1", 259).output_tokens + 2 * len(work.outputs)


def test_a_cut_work_is_its_beginning():
    work = make_work("ragged", "1", 259).cut(5, 8)
    assert work.prompts == make_work("ragged", "1", 259).prompts[:5]
    assert len(work.outputs) == 5
    assert max(work.outputs) <= 8
