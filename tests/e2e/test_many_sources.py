"""A mixture of many data sets in one process takes no more descriptors than webdataset's, and says so where they do not suffice."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.scripted_origin import ScriptedOrigin
from support.sidecar import environment, running
from support.tars import tar_shard
from support.warm_python import python_program

pytestmark = pytest.mark.once  # whose descriptors are counted are the data sets', which are ours

SOURCES = 60
MIXED = """
import json, resource, sys, time
import webdataset as wds
import forebay_loader as fb
base, count, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sets = [fb.WebDataset(f"{base}/{number}.tar", shardshuffle=False) for number in range(count)]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
began = time.monotonic()
try:
    print(json.dumps(sorted(sample["__key__"] for sample in wds.RandomMix(sets, longest=True))))
except fb.ShardReadError as error:
    print(json.dumps([str(error), time.monotonic() - began]))
"""


async def mixed(directory: Path, origin: ScriptedOrigin, limit: int) -> list[Any]:
    for number in range(SOURCES):
        origin.put(f"/{number}.tar", tar_shard(number, 4, 100_000))
    with running(directory, "--cache-size", "200MB", allow=[origin.base]) as sidecar:
        environ, pipes = environment(directory, FOREBAY_URL=sidecar.url), {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with python_program(["-c", MIXED, origin.base, str(SOURCES), str(limit)], environ, directory, text=True, **pipes) as program:
            said, errors = await asyncio.to_thread(program.communicate, timeout=200)
    assert program.returncode == 0, errors
    found: list[Any] = json.loads(said)
    return found


async def test_a_descriptor_a_source_is_enough(place: Path, origin: ScriptedOrigin) -> None:
    """And a few for the process: all samples come, once each."""
    found = await mixed(place, origin, SOURCES + 32)
    assert found == sorted(f"{number:03d}-{sample:03d}" for number in range(SOURCES) for sample in range(4))


async def test_too_few_descriptors_are_named_at_once(place: Path, origin: ScriptedOrigin) -> None:
    """With their number, and not as a sidecar that does not answer."""
    said, took_s = await mixed(place, origin, 40)
    assert "all of the 40 files open that it may (EMFILE); raise the limit ('ulimit -n')" in said
    assert took_s < 30  # a sidecar that is absent is waited for a minute
