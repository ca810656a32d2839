"""Whatever a kill, a power cut or a person left behind: it starts, at once, loses cache content at most, and says one line."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.crashing import DAMAGES, copy_tree
from support.fake_origin import FakeOrigin
from support.house import LAYOUT, SEGMENT, building, data_of
from support.kills import claimed
from support.lengths import ordinarily
from support.readers import make_shard, read
from support.scripted_origin import ScriptedOrigin
from support.seams import refuses
from support.sidecar import Sidecar, running, start, wait_until
from support.sidecar import small_segments as program_of
from support.stores import make_row

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.segments import DEFAULT_LAYOUT, SEGMENT_BYTES
from forebay_proxy.store import directory as boot
from forebay_proxy.store.index.database import IndexDatabase
from forebay_proxy.store.store import StartReport, Store

NAMES = [f"https://o/set/{number}.tar" for number in range(3)]
SMALL = 1 << 18  # segments of the real processes here
CUTS = ordinarily(2, of=3, what="power cuts")


def index_text(cache: Path) -> None:
    (cache / "index" / "cache.db").write_bytes(b"garbage " * 1000)


def index_empty(cache: Path) -> None:
    os.truncate(cache / "index" / "cache.db", 0)


def index_half(cache: Path) -> None:
    with closing(sqlite3.connect(cache / "index" / "cache.db")) as index:
        index.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    os.truncate(cache / "index" / "cache.db", (cache / "index" / "cache.db").stat().st_size // 2)


def index_gone(cache: Path) -> None:
    shutil.rmtree(cache / "index")


def log_cut(cache: Path) -> None:
    os.truncate(cache / "index" / "cache.db-wal", (cache / "index" / "cache.db-wal").stat().st_size // 2)


def log_garbage(cache: Path) -> None:
    (cache / "index" / "cache.db-wal").write_bytes(random.Random(1).randbytes(100_000))


def log_gone(cache: Path) -> None:
    (cache / "index" / "cache.db-wal").unlink()
    (cache / "index" / "cache.db-shm").unlink()


def shared_memory_garbage(cache: Path) -> None:
    (cache / "index" / "cache.db-shm").write_bytes(random.Random(2).randbytes(32768))


def key_gone(cache: Path) -> None:
    (cache / "hmac.key").unlink()


def key_cut(cache: Path) -> None:
    os.truncate(cache / "hmac.key", 5)


def lock_left(cache: Path) -> None:
    (cache / "lock").write_text('{"pid": 1, "url": "http://127.0.0.1:7070", "start_time": 1}')


def lock_garbage(cache: Path) -> None:
    (cache / "lock").write_bytes(b"\xff" * 10_000)


def shards_gone(cache: Path) -> None:
    shutil.rmtree(cache / "shards")


def aside_left(cache: Path) -> None:
    """Killed between setting a broken index aside and making a new one; an older broken one is still there."""
    shutil.copytree(cache / "index", cache / "index-broken")
    (cache / "index" / "cache.db").write_bytes(b"garbage")


def nothing(cache: Path) -> None:
    pass


LEFT_BEHIND: dict[Callable[[Path], None], int] = {  # and how many lines it is worth
    nothing: 0, index_text: 1, index_empty: 0, index_half: 1, index_gone: 0, log_cut: 0, log_garbage: 0, log_gone: 0,
    shared_memory_garbage: 0, key_gone: 0, key_cut: 0, lock_left: 0, lock_garbage: 0, shards_gone: 0, aside_left: 1,
}  # fmt: skip


@pytest.mark.another_python
@pytest.mark.parametrize(
    "damage",
    [pytest.param(damage, marks=pytest.mark.each_python if damage in (nothing, index_half) else ()) for damage in LEFT_BEHIND],
    ids=lambda damage: damage.__name__,
)
async def test_it_starts(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Under the same boot, so that bytes are trusted which the index claims: all that is served is right; what is lost is fetched."""
    origin = FakeOrigin()
    for seed, name in enumerate(NAMES):
        origin.put(name, data_of(3 * SEGMENT - 50, seed))
    async with building(tmp_path / "c", segments=7, origin=origin) as world:
        for name in (*NAMES, *NAMES[:2]):  # more than fits: the files have seen evictions
            await world.get(name)
            await world.quiet()
        await world.store.index_writer.committed()
        killed = copy_tree(tmp_path / "c", tmp_path / "killed")
    damage(killed)
    loaded = await look(killed)
    assert sum("index-broken" in notice for notice in loaded.notices) == LEFT_BEHIND[damage], loaded.notices
    assert len(loaded.notices) <= 3
    async with building(killed, segments=7, origin=origin) as world:
        for name in NAMES:
            assert await world.get(name) == origin.remotes[name].data
    assert not [notice for notice in (await look(killed)).notices if "index" in notice], "said once"


async def look(path: Path) -> StartReport:
    store = await Store.open(path, who="test", layout=LAYOUT)
    try:
        return await store.load()
    finally:
        await store.aclose()


@pytest.mark.another_python
async def test_the_clock_goes_backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a battery wakes up in 1970; files and rows are of the future then."""
    origin = FakeOrigin()
    origin.put(NAMES[0], data_of(3 * SEGMENT))
    async with building(tmp_path / "c", origin=origin) as world:
        await world.get(NAMES[0])
    monkeypatch.setattr(time, "time", lambda: 1.0)
    origin.log.clear()
    async with building(tmp_path / "c", origin=origin) as world:
        assert await world.get(NAMES[0]) == data_of(3 * SEGMENT)
        assert origin.asked() == []
        origin.put(NAMES[1], data_of(SEGMENT, 1))
        await world.get(NAMES[1])
    monkeypatch.undo()


@pytest.mark.another_python
async def test_an_index_that_cannot_be_read_is_out_of_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk error while it is read: set aside, not ignored; were it read again later, it would speak of files that are others by then."""
    store = await Store.open(tmp_path / "c", who="test", layout=LAYOUT)
    await store.load()
    store.index_writer.put(make_row())
    await store.aclose()
    with monkeypatch.context() as patch:
        real = IndexDatabase.load
        errors = [sqlite3.OperationalError("disk I/O error")]

        def fail(index: Any) -> Any:
            if errors:
                raise errors.pop()
            return real(index)

        patch.setattr(IndexDatabase, "load", fail)
        assert "disk I/O error" in (await look(tmp_path / "c")).notices[0]
    assert len((await look(tmp_path / "c")).dropped) == 0, "it is gone for good"


@pytest.mark.another_python
async def test_an_index_that_stays_unreadable_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be kept there: exit code 2 and what to do, not a traceback."""
    refuses(monkeypatch, IndexDatabase, sqlite3.OperationalError("disk I/O error"), "load")
    with pytest.raises(ConfigError, match="cannot be used") as told:
        await look(tmp_path / "c")
    assert "\n" not in str(told.value)
    assert "--cache-dir" in told.value.next_step


@pytest.mark.another_python
@pytest.mark.parametrize("said", ["", None])
async def test_a_boot_that_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None) -> None:
    """Where the kernel does not say which boot this is, every start is another one."""
    if said is not None:
        (tmp_path / "boot_id").write_text(said)
    monkeypatch.setattr(boot, "_KERNEL_SAYS", tmp_path / "boot_id")
    boots = set()
    for _ in range(2):
        store = await Store.open(tmp_path / "c", who="test")
        boots.add(store.boot_id)
        await store.aclose()
    assert len(boots) == 2
    assert all(boots)


# The same in real processes


@pytest.fixture
async def origin(place: Path) -> AsyncIterator[ScriptedOrigin]:
    async with ScriptedOrigin() as made:
        for number in range(6):
            path = make_shard(place / f"{number}.tar", 5 * SMALL + 1234 * number, number)
            made.put(f"/{path.name}", path.read_bytes(), etag=f'"{number}"')
        yield made


def under_boot(place: Path, name: str) -> tuple[str, ...]:
    """A command line's beginning: the kernel says that this is boot ``name``."""
    file = place / f"boot-{name}"
    file.write_text(f"{name}\n")
    wrapper = ("unshare", "-m", "sh", "-c", 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"', str(file))
    if os.geteuid() or subprocess.run([*wrapper, "true"], capture_output=True, check=False).returncode:
        pytest.skip("only root can put another boot id in place, in a mount namespace")
    return wrapper


def all_read(sidecar: Sidecar, origin: ScriptedOrigin, place: Path) -> int:
    """Every shard, every byte compared; how many bytes the origin was asked for."""
    before = sidecar.status()["bytes"]["origin"]
    for number in range(6):
        assert read(sidecar.proxied(origin.url(f"/{number}.tar")), place / f"{number}.tar").whole
    return int(sidecar.status()["bytes"]["origin"] - before)


async def test_power_cuts(place: Path, origin: ScriptedOrigin) -> None:
    """Killed, files torn, zeroed, cut, lengthened and swapped, and another boot: what is wrong is fetched again, what is right is kept."""
    chance = random.Random(3)
    torn = ["flip", "zero", "cut and regrow", "swap", "shorten", "lengthen"]
    how: dict[str, Any] = {"allow": [origin.base], "program": program_of(SMALL)}
    with running(place, "--cache-size", "200MB", wrapper=under_boot(place, "0"), **how) as sidecar:
        assert await asyncio.to_thread(all_read, sidecar, origin, place) > 0
        await asyncio.to_thread(wait_until, lambda: claimed(place) == 6 * 6 - 1)  # the first shard ends where a segment does
        sidecar.kill()
    for cut in range(1, CUTS + 1):
        files = sorted((place / "cache" / "shards").iterdir())
        for file, kind in zip(files, chance.sample(torn, len(torn)), strict=True):
            DAMAGES[kind](file, chance.choice(files), chance)
        with running(place, "--cache-size", "200MB", wrapper=under_boot(place, str(cut)), **how) as sidecar:
            fetched = await asyncio.to_thread(all_read, sidecar, origin, place)
            found = sidecar.metric("forebay_cache_integrity_failures_total", stage="recovery")
            print(f"cut {cut}: {found:g} segments found wrong, {fetched} bytes fetched again")
            assert found > 0
            assert 0 < fetched < 6 * 5 * SMALL, "what is right is not fetched again"
            assert await asyncio.to_thread(all_read, sidecar, origin, place) == 0
            await asyncio.to_thread(wait_until, lambda: claimed(place) == 6 * 6 - 1)
            sidecar.kill()


async def test_it_serves_at_once(place: Path, origin: ScriptedOrigin, tmp_path: Path) -> None:
    """2,000 shards of 40,000 segments, the index lost: it serves before it has tidied, counts what is left, and stays inside the bound."""
    how: dict[str, Any] = {"allow": [origin.base]}
    began = time.monotonic()
    start(place, "--cache-size", "300MB", **how).terminate()
    empty_s = time.monotonic() - began
    shards = place / "cache" / "shards"
    for number in range(2000):
        with (shards / make_row(f"https://o/{number}").key).open("wb") as file:
            file.truncate(20 * SEGMENT_BYTES)
            os.pwrite(file.fileno(), b"x" * 100_000, 0)
    assert DEFAULT_LAYOUT.count(20 * SEGMENT_BYTES) == 20
    (place / "cache" / "index" / "cache.db").write_bytes(b"garbage" * 1000)
    began = time.monotonic()
    with running(place, "--cache-size", "300MB", **how) as sidecar:
        took_s = time.monotonic() - began
        books = sidecar.status()["cache"]
        left = len(list(shards.iterdir()))
        assert books["overhead_bytes"] >= left * 102_400 * 0.9, "what is not removed yet is counted"
        assert await asyncio.to_thread(all_read, sidecar, origin, place) > 0
        print(f"ready after {took_s:.2f} s (an empty one, ended: {empty_s:.2f} s), {left} of 2000 leftovers still there and counted")
        assert left > 100, "it waited until all was tidied"
        while len(list(shards.iterdir())) > 6:
            await asyncio.sleep(0.05)
        while sidecar.status()["cache"]["overhead_bytes"] > 16 * 2**20:
            await asyncio.sleep(0.05)
