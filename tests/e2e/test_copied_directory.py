"""A cache directory that was copied or put back on the same machine, under the same boot: rows and files may be of different moments;
and files in it that are nobody's.

Whatever is wrong in it is found before a byte of it leaves; what is right is used.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from support.scripted_origin import ScriptedOrigin
from support.sidecar import Sidecar, running, small_segments, wait_until

SEGMENT = 1 << 20
PROGRAM = small_segments(SEGMENT)
SIZE = 3 * SEGMENT
NAMES = ("/0.tar", "/1.tar")


def damaged(source: Path) -> None:
    """As when the copy was made between a row and a punch: the last segment's bytes are zeros, its size and its row are as they were."""
    for file in (source / "shards").iterdir():
        times = file.stat()
        with file.open("r+b") as opened:
            opened.seek(2 * SEGMENT)
            opened.write(b"\0" * SEGMENT)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def copied(cache: Path, aside: Path, *options: str) -> None:
    subprocess.run(["cp", "-r", "--sparse=never", *options, f"{cache}/.", str(aside)], check=True)


def beside(cache: Path, aside: Path) -> None:
    """Used where it was copied to."""
    shutil.rmtree(cache)
    aside.rename(cache)


def used_again(cache: Path, aside: Path) -> None:
    """Removed, and made again from the copy: numbers of files are used again."""
    shutil.rmtree(cache)
    copied(aside, cache, "-p")


def over_itself(cache: Path, aside: Path) -> None:
    """cp -a over what is there: each file keeps its number."""
    copied(aside, cache, "-p")


def renamed_in(cache: Path, aside: Path) -> None:
    """As rsync -a puts files back: written beside, given their times, renamed over."""
    for file in (aside / "shards").iterdir():
        fresh = cache / "shards" / ".fresh"
        shutil.copy2(file, fresh)
        fresh.rename(cache / "shards" / file.name)


WAYS: tuple[Callable[[Path, Path], None], ...] = (beside, used_again, over_itself, renamed_in)


async def filled(place: Path, origin: ScriptedOrigin) -> dict[str, bytes]:
    """A cache of two shards, given back; the shards' bytes by path."""
    data = {name: random.Random(name).randbytes(SIZE) for name in NAMES}
    for name, body in data.items():
        origin.put(name, body)
    with running(place, "--cache-size", "300MB", "--verify-every-s", "0", allow=[origin.base], program=PROGRAM) as sidecar:
        for name, body in data.items():
            assert await got(sidecar, origin, name) == body
        wait_until(lambda: sum(shard["segments"] for shard in sidecar.shards().values()) == 3 * len(NAMES))
    return data


async def got(sidecar: Sidecar, origin: ScriptedOrigin, name: str) -> bytes:
    def read() -> bytes:
        with urllib.request.urlopen(sidecar.proxied(origin.url(name)), timeout=120) as answer:
            return bytes(answer.read())

    return await asyncio.to_thread(read)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_what_was_put_back_is_verified_before_its_first_use(
    tmp_path: Path, origin: ScriptedOrigin, way: Callable[[Path, Path], None]
) -> None:
    """No zeros are served, and what is right is not fetched again."""
    data = await filled(tmp_path, origin)
    cache, aside = tmp_path / "cache", tmp_path / "aside"
    aside.mkdir(mode=0o700)
    copied(cache, aside, "-p")
    damaged(aside)
    time.sleep(0.01)  # the clock of files ticks every 4 ms
    way(cache, aside)
    with running(tmp_path, "--cache-size", "300MB", "--verify-every-s", "0", allow=[origin.base], program=PROGRAM) as sidecar:
        assert {name: await got(sidecar, origin, name) == body for name, body in data.items()} == dict.fromkeys(NAMES, True)
        fetched = sidecar.status()["bytes"]["origin"]
    assert fetched == len(NAMES) * SEGMENT


@pytest.mark.parametrize("moved", [False, True])
async def test_where_it_was_it_is_trusted(tmp_path: Path, origin: ScriptedOrigin, *, moved: bool) -> None:
    """The same folder under this or another path: nothing is doubted, nothing read twice."""
    data = await filled(tmp_path, origin)
    if moved:
        (tmp_path / "cache").rename(tmp_path / "aside")
        (tmp_path / "aside").rename(tmp_path / "cache")
    with running(tmp_path, "--cache-size", "300MB", "--verify-every-s", "0", allow=[origin.base], program=PROGRAM) as sidecar:
        assert [text for text in sidecar.status()["notices"] if "verified" in text] == []
        for name, body in data.items():
            assert await got(sidecar, origin, name) == body
        verified = [sidecar.metric("forebay_segments_verified_total", why="recovery", result=result) for result in ("right", "wrong")]
        assert (sidecar.status()["bytes"]["origin"], verified) == (0, [0, 0])


async def test_what_is_not_ours_stays(tmp_path: Path, origin: ScriptedOrigin) -> None:
    """Files nobody knows are named at the start and outlive eviction of everything; they count against the limit."""
    await filled(tmp_path, origin)
    strangers = [tmp_path / "cache" / "thesis.txt", tmp_path / "cache" / "shards" / "notes"]
    for stranger in strangers:
        stranger.write_text("precious")
    with running(tmp_path, "--cache-size", "300MB", allow=[origin.base], program=PROGRAM) as sidecar:
        notices = " ".join(sidecar.status()["notices"])
        sidecar.ask("/v1/evict", b'{"all": true}')
        assert sidecar.shards() == {}
    assert [stranger.read_text() for stranger in strangers] == ["precious"] * 2
    assert all(stranger.name in notices for stranger in strangers), notices
