"""``forebay index`` of sets that the cache cannot hold, that were replaced, and whose count was stopped on the way."""

from __future__ import annotations

import json
import random
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sidecar import Sidecar, forebay, running, small_segments
from support.tarmaking import written

SHARDS = 12
SEGMENT = 1 << 18  # a shard is ten
CACHE = 12 << 20  # of it some 10 MB are for shards


def make(path: Path, samples: int, size: int) -> None:
    chance = random.Random(samples)
    path.write_bytes(written([(f"{number:03}.bin", chance.randbytes(size)) for number in range(samples)], tarfile.USTAR_FORMAT))


@pytest.fixture
def shards(place: Path) -> Path:
    """Thrice what the cache holds, 10 to 21 samples each."""
    found = place / "shards"
    found.mkdir()
    for number in range(SHARDS):
        make(found / f"{number}.tar", 10 + number, 2_500_000 // (10 + number))
    return found


@pytest.fixture
def sidecar(place: Path, shards: Path) -> Iterator[Sidecar]:
    with running(place, "--cache-size", str(CACHE), "--file-root", str(shards), program=small_segments(SEGMENT)) as found:
        yield found


def command(shards: Path, sidecar: Sidecar, *arguments: str, count: int = SHARDS) -> list[str]:
    """Quiet: on a busy machine it would tell how far it is, and nothing but faults is to be on stderr."""
    return ["index", f"file://{shards}/{{0..{count - 1}}}.tar", "--url", sidecar.url, "--quiet", *arguments]


def index(place: Path, shards: Path, sidecar: Sidecar, *arguments: str, count: int = SHARDS) -> subprocess.CompletedProcess[str]:
    return forebay(place, *command(shards, sidecar, *arguments, count=count))


def expected(count: int = SHARDS) -> dict[str, int]:
    return {f"{number}.tar": 10 + number for number in range(count)}


def test_a_set_larger_than_the_cache(place: Path, shards: Path, sidecar: Sidecar) -> None:
    """All of it is counted, each shard fetched once; and again, also where nothing that was counted is left."""
    done = index(place, shards, sidecar)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((place / "sizes.json").read_text()) == expected()
    total = sum(file.stat().st_size for file in shards.iterdir())
    assert sidecar.metric("forebay_origin_bytes_total") == pytest.approx(total, rel=0.02)
    assert index(place, shards, sidecar).returncode == 0
    assert sidecar.metric("forebay_origin_bytes_total") == pytest.approx(total, rel=0.02)


def test_replaced_shards_are_counted_again(place: Path, shards: Path, sidecar: Sidecar) -> None:
    """Also by a sidecar that has their index, and had it a moment ago."""
    assert index(place, shards, sidecar, "--sizes", "before.json").returncode == 0
    make(shards / "0.tar", 33, 70_000)
    make(shards / "11.tar", 7, 300_000)
    assert index(place, shards, sidecar, "--sizes", "after.json").returncode == 0
    assert json.loads((place / "after.json").read_text()) == {**expected(), "0.tar": 33, "11.tar": 7}
