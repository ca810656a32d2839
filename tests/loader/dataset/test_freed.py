"""What a pass leaves behind where nobody runs the cyclic collector, as some trainers have it: nothing.

A cycle that holds an iterator holds its pipeline: LMDB stays open, descriptors run out. From Python 3.12 on frames hold their callers'.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Iterator
from types import FrameType, GeneratorType
from typing import Any

import pytest
from support.fake_proxy import FakeServer

import forebay_loader as fb

wds = pytest.importorskip("webdataset")
pytestmark = [pytest.mark.webdataset, pytest.mark.each_python, pytest.mark.usefixtures("shards")]

SHARDS = 6
SAMPLES = 5 * SHARDS
URLS = [f"s3://bucket/{number:03d}.tar" for number in range(SHARDS)]
PASSES = 5


class Broken(Exception):
    """Of a source, a stage or a shard."""


class Probe:
    """A stage that lives as long as its pipeline does."""

    def __call__(self, source: Any) -> Iterator[Any]:
        yield from source


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """The collector does not run by itself; what it is asked to find is kept to be looked at."""
    gc.collect()
    gc.freeze()  # what others have left, and imports: hundreds of thousands of objects, which each look would visit
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def broken_source(good: int) -> Iterator[dict[str, str]]:
    yield from ({"url": url} for url in URLS[:good])
    raise Broken


def whole(probe: Probe) -> None:
    data = fb.WebDataset(URLS, shardshuffle=True).compose(probe)
    assert sum(1 for _ in data) == SAMPLES


def broken_off(probe: Probe) -> None:
    samples = iter(fb.WebDataset(URLS, shardshuffle=True).compose(probe))
    next(samples)


def drawn(probe: Probe) -> None:
    data = fb.WebDataset(URLS, resampled=True).compose(probe).with_epoch(SAMPLES)
    assert sum(1 for _ in data) == SAMPLES


def stage(probe: Probe) -> None:
    data = wds.DataPipeline(wds.SimpleShardList(URLS), fb.tarfile_to_samples(), probe)
    assert sum(1 for _ in data) == SAMPLES


def stock_behind_ahead(probe: Probe) -> None:
    fb.enable()
    data = wds.DataPipeline(wds.SimpleShardList(URLS), fb.ahead(), wds.tarfile_to_samples(), probe)
    assert sum(1 for _ in data) == SAMPLES
    fb.disable()


def source_fails_at_once(probe: Probe) -> None:
    with pytest.raises(Broken):
        list(probe(fb.tarfile_to_samples()(broken_source(0))))


def source_fails_while_ahead(probe: Probe) -> None:
    samples = probe(fb.tarfile_to_samples(ahead=2)(broken_source(SHARDS)))
    with pytest.raises(Broken):
        list(samples)


def shard_is_missing(probe: Probe) -> None:
    with pytest.raises(fb.ShardReadError):
        list(fb.WebDataset([*URLS, "s3://bucket/missing.tar"], shardshuffle=False).compose(probe))


def shard_is_no_tar(probe: Probe) -> None:
    with pytest.raises(fb.TarFault):
        list(fb.WebDataset("s3://bucket/words.tar", shardshuffle=False).compose(probe))


# The last two sources and the shards are met in Forebay's own stage.
PASSES_OF = [whole, broken_off, drawn, stage, stock_behind_ahead]
PASSES_OF += [
    pytest.param(one_pass, marks=pytest.mark.once)
    for one_pass in (source_fails_at_once, source_fails_while_ahead, shard_is_missing, shard_is_no_tar)
]  # fmt: skip


@pytest.mark.parametrize("one_pass", PASSES_OF, ids=lambda made: made.__name__)
def test_a_pass_leaves_no_cycle(one_pass: Callable[[Probe], None], shards: FakeServer) -> None:
    """Its pipeline is gone when the last reference is; and no object or frame of ours waits for the collector."""
    shards.put("/s3/bucket/words.tar", b"<html>not a tar</html>" * 100)
    one_pass(Probe())  # the first may import
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    probe = Probe()
    alive = weakref.ref(probe)
    one_pass(probe)
    del probe
    assert alive() is None
    gc.collect()
    assert [found for found in map(of_ours, gc.garbage) if found] == []


def test_passes_leave_no_descriptor() -> None:
    """Each data set counts its epochs in a file without a name, which leaves with it."""
    before = unnamed_files()
    for _ in range(PASSES):
        whole(Probe())
        shard_is_missing(Probe())
    assert unnamed_files() == before


def of_ours(found: Any) -> str:
    """The name of an object of the loader's, or of a function it was in; "" for anything else."""
    if type(found).__module__.startswith("forebay_"):
        return type(found).__qualname__
    code = found.f_code if isinstance(found, FrameType) else found.gi_code if isinstance(found, GeneratorType) else None
    return f"{code.co_filename}:{code.co_name}" if code is not None and "forebay_" in code.co_filename else ""


def unnamed_files() -> int:
    links = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))  # one may be closed meanwhile
    return sum("forebay-epochs" in link for link in links)
