"""What an exact state refuses: stages that nobody can see through, shards that are others now, values that no state has."""

from __future__ import annotations

import json
import logging
import os
import random
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support.tars import shard_files, tar_shard

import forebay_loader as fb
from forebay_loader.resume.pass_state import packed
from forebay_loader.resume.state_parts import sealed

wds = pytest.importorskip("webdataset")

pytestmark = pytest.mark.webdataset

SHARDS, SAMPLES = 4, 6


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    return shard_files(tmp_path, [SAMPLES] * SHARDS)


def key(sample: Any) -> str:
    return str(sample["__key__"])


def made(urls: list[str], **how: Any) -> Any:
    return fb.WebDataset(urls, shardshuffle=False, **how).shuffle(8, initial=8).map(key)


def state_after(data: Any, outputs: int) -> dict[str, Any]:
    given = iter(data)
    list(islice(given, outputs))
    state: dict[str, Any] = json.loads(json.dumps(data.state_dict()))
    return state


def rest(data: Any, state: dict[str, Any]) -> list[str]:
    data.load_state_dict(state)
    return list(data)


def held_back(samples: Iterator[Any]) -> Iterator[Any]:
    """A stage as users write them."""
    last = next(samples)
    for sample in samples:
        yield last
        last = sample
    yield last


OPAQUE: dict[str, Callable[[Any], Any]] = {
    "held_back is not known here": lambda data: data.compose(held_back),
    "Cached is not known here": lambda data: data.mcached(),
    "shuffle draws from a generator of your own": lambda data: data.shuffle(3, rng=random.Random(1)),
    "SampleShuffle comes behind batches": lambda data: data.listed(2).shuffle(3),
    "SampleShuffle comes behind the rows of batches": lambda data: data.listed(2).unlisted().shuffle(3),
}


class OwnIter(fb.WebDataset):
    """As users derive one: it gives a sample once it has the next."""

    def __iter__(self) -> Iterator[Any]:
        return held_back(super().__iter__())


class OneForOne(fb.WebDataset):
    state_kind = "one"

    def __iter__(self) -> Iterator[Any]:
        return map(key, super().__iter__())


@pytest.mark.parametrize("resume", ["exact", "replay"])
def test_an_iter_of_ones_own_is_not_seen_through(urls: list[str], resume: str) -> None:
    """The class is named, also where an epoch is run again: what it gave cannot be counted. So is one that is derived from it."""
    for kind in (OwnIter, type("Derived", (OwnIter,), {"state_kind": "one"}), type("Mixed", (OwnIter, OneForOne), {})):
        with pytest.raises(fb.NotResumable, match=r"its class OwnIter has an __iter__ of its own.*state_kind = 'one'"):
            state_after(kind(urls, shardshuffle=False, resume=resume), 2)


def test_an_iter_that_says_that_it_gives_one_for_one(urls: list[str]) -> None:
    """Its data set goes on where it was."""
    whole = list(OneForOne(urls, shardshuffle=False).shuffle(8))
    assert rest(OneForOne(urls, shardshuffle=False).shuffle(8), state_after(OneForOne(urls, shardshuffle=False).shuffle(8), 5)) == whole[5:]


@pytest.mark.parametrize("words", OPAQUE)
def test_a_stage_that_is_not_seen_through(urls: list[str], words: str) -> None:
    """It is named, and what resumes all the same is said."""
    data = OPAQUE[words](fb.WebDataset(urls, shardshuffle=False))
    with pytest.raises(fb.NotResumable, match=f"stage {words}.*resume='replay'"):
        state_after(data, 2)


def test_replay_goes_on_behind_such_a_stage(urls: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """By running the epoch again; and a line says what that cost."""
    replayed = lambda: made(urls, resume="replay").compose(held_back)  # noqa: E731
    whole = list(replayed())
    state = state_after(replayed(), 7)
    assert "shards" not in state
    with caplog.at_level(logging.WARNING):
        assert rest(replayed(), state) == whole[7:]
    assert "7 outputs of epoch 0 were made again" in caplog.text


@pytest.mark.parametrize("version", [1, 2])
def test_a_state_of_before_says_so(urls: list[str], version: int) -> None:
    """What it promised, the same pixels, nobody can give any more: draws are made otherwise now."""
    for how in ({}, {"resume": "replay"}):
        with pytest.raises(ValueError, match=f"of format {version}, written by an older Forebay, whose fb.rng and fb.video drew otherwise"):
            rest(made(urls, **how), {**state_after(made(urls), 9), "format": version})


def test_an_exact_state_is_replayed_where_that_is_asked(urls: list[str]) -> None:
    assert rest(made(urls, resume="replay"), state_after(made(urls), 9)) == list(made(urls))[9:]


STRANGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no dictionary": (lambda state: [state], "is no state of fb.WebLoader or fb.WebDataset"),
    "of another format": (lambda state: {**state, "format": 4}, "format 4, and this Forebay reads 3"),
    "without a seal": (lambda state: {name: value for name, value in state.items() if name != "seal"}, "is damaged"),
    "of a loader": (lambda state: sealed({**state, "kind": "loader"}), "fb.WebLoader's load_state_dict takes"),
    "another stage's": (
        lambda state: sealed({**state, "buffers": [{**state["buffers"][0], "kind": "slice"}]}),
        "buffer 1 is of a 'slice', and the stage here is a 'shuffle'",
    ),
    "other shards begun": (lambda state: sealed({**state, "shards": packed([0, 3, 2])}), "shard 2 of its pass was number 3"),
}


@pytest.mark.parametrize("what", STRANGE)
def test_a_strange_state_is_named(urls: list[str], what: str) -> None:
    """Each a ``ValueError`` that says what cannot be, when it is loaded or before the first sample."""
    change, words = STRANGE[what]
    with pytest.raises(ValueError, match=re.escape(words)):
        rest(made(urls), change(state_after(made(urls), 9)))


def changed(url: str) -> None:
    Path(url).write_bytes(tar_shard(9, SAMPLES + 1, size=20))


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("handler", [None, wds.ignore_and_continue])
def test_a_shard_that_has_changed(urls: list[str], number: int, handler: Any) -> None:
    """The one in which it stopped, and those of which samples wait: named, and not for a handler to pass over."""
    state = state_after(made(urls, handler=handler), 9)
    changed(urls[number])
    with pytest.raises(ValueError, match=rf"{number}\.tar has changed: the state that was loaded was taken in its version"):
        rest(made(urls, handler=handler), state)


def test_a_shard_that_is_behind_may_change(urls: list[str]) -> None:
    """Nothing of it is left."""
    data = fb.WebDataset(urls, shardshuffle=False).map(key)
    state = state_after(data, 2 * SAMPLES + 1)
    changed(urls[0])
    assert len(rest(fb.WebDataset(urls, shardshuffle=False).map(key), state)) == 2 * SAMPLES - 1


def test_a_shard_that_is_gone(urls: list[str]) -> None:
    """An error; and what a handler passes over is missing, and nothing else."""
    whole = list(made(urls))
    state = state_after(made(urls, handler=wds.ignore_and_continue), 9)
    os.unlink(urls[1])
    with pytest.raises(FileNotFoundError):
        rest(made(urls), state)
    found = rest(made(urls, handler=wds.ignore_and_continue), state)
    assert sorted(found) == sorted(one for one in whole[9:] if not one.startswith("001"))


def stops(sample: Any) -> str:
    if key(sample) == "002-003":
        raise ValueError("enough")
    return key(sample)


HANDLED: dict[str, Callable[[list[str]], Any]] = {
    "a shard that is cut": lambda urls: fb.WebDataset(urls, wds.ignore_and_stop, shardshuffle=False).map(key),
    "in batches": lambda urls: fb.WebDataset(urls, wds.ignore_and_stop, shardshuffle=False).map(key).batched(4, collation_fn=list),
    "a function": lambda urls: fb.WebDataset(urls, wds.ignore_and_continue, shardshuffle=False).map(stops, handler=wds.ignore_and_continue),
    "a function ends": lambda urls: (
        fb.WebDataset(urls, wds.ignore_and_continue, shardshuffle=False)
        .map(stops, handler=wds.ignore_and_stop)
        .batched(4, collation_fn=list)
    ),
    "what is in a budget ends": lambda urls: (
        fb.WebDataset(urls, wds.ignore_and_continue, shardshuffle=False)
        .map_dict(bin=len)
        .map(lambda sample: {"key": stops(sample)}, handler=wds.ignore_and_stop)
        .compose(fb.batched(max_samples=4, collate=lambda batch: [one["key"] for one in batch]))
    ),
}


@pytest.mark.parametrize("how", HANDLED)
def test_what_a_handler_passes_over_or_ends(urls: list[str], how: str) -> None:
    """The second shard is cut, and a function fails in the third: what comes is what would have come, wherever it was broken off."""
    whole = Path(urls[1]).read_bytes()
    Path(urls[1]).write_bytes(whole[: 3 * len(whole) // 5])
    expected = list(HANDLED[how](urls))
    for stop in range(1, len(expected) + 1):
        assert rest(HANDLED[how](urls), state_after(HANDLED[how](urls), stop)) == expected[stop:], stop


def test_other_files_are_other_samples(urls: list[str]) -> None:
    """Numbers of samples mean others where some are left out whole."""
    state = state_after(made(urls), 9)
    with pytest.raises(ValueError, match="files was 'all' and is 'some'"):
        rest(made(urls, select_files=str.isascii), state)


@pytest.mark.parametrize("handler", [None, wds.ignore_and_continue, wds.ignore_and_stop])
def test_a_function_that_makes_another_of_a_sample(urls: list[str], handler: Any) -> None:
    """One that fails where it did not fail before: an error, or what its handler passes over, which is missing."""

    def piped(fails: bool) -> Any:
        given: dict[str, Any] = {} if handler is None else {"handler": handler}
        data = fb.WebDataset(urls, shardshuffle=False)
        return data.map(lambda sample: 1 // (not fails or key(sample) not in waiting) and key(sample), **given).shuffle(8, initial=8)

    waiting: list[str] = []
    whole = list(piped(False))
    state = state_after(piped(False), 9)
    read = [f"{shard:03d}-{number:03d}" for shard in range(SHARDS) for number in range(SAMPLES)][: state["read"]]
    waiting += [one for one in read if one not in whole[:9]][:2]
    if handler is None:
        with pytest.raises(ZeroDivisionError):
            rest(piped(True), state)
    else:
        assert sorted(rest(piped(True), state)) == sorted(set(whole[9:]) - set(waiting))


def test_another_world_is_sent_to_merge(urls: list[str]) -> None:
    state = state_after(made(urls), 9)
    with pytest.raises(ValueError, match=r"rank was '0 of 1' and is '1 of 2'.*fb\.merge_states makes"):
        rest(made(urls, data_parallel=(1, 2), nodesplitter=wds.split_by_node), state)
