"""Complete shards as descriptors: what may be given out, what is leased, and what the kernel's lease keeps."""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
from contextlib import AsyncExitStack
from io import FileIO
from pathlib import Path

import pytest
from support.house import LAYOUT, SEGMENT, World, building, data_of, reader, shard_of, stored
from support.seams import refuses
from support.stores import held_by_a_child

from forebay_proxy.cache.fd_lender import UseHttp
from forebay_proxy.core.errors import DiskFailed, ShardForbidden
from forebay_proxy.core.facts.origins import Revalidated
from forebay_proxy.core.facts.requests import ShardOpened
from forebay_proxy.core.shard import Shard
from forebay_proxy.store.files import file_io
from forebay_proxy.store.files.shard_file import ShardFile
from forebay_proxy.wire.protocol.plan import ReaderName

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"
C = "https://o/set/c.tar"
LENGTH = 3 * SEGMENT + 77


async def passed(world: World, stack: AsyncExitStack, shard: str | Shard = A, who: ReaderName | None = None) -> FileIO:
    """The file of a shard that is lent until ``stack`` ends."""
    shard = shard_of(shard) if isinstance(shard, str) else shard
    lender = world.cache.fd_lender
    fd_lease = lender.lend(shard, who) or await lender.lend_when_ready(shard, who)
    for last in (lender.release, lender.end):  # in the other order
        stack.callback(last, fd_lease)
    lender.passed(fd_lease)
    return stack.enter_context(FileIO(fd_lease.descriptor))


async def refused(world: World, shard: str | Shard = A) -> str:
    """Why a shard is not lent."""
    with pytest.raises(UseHttp) as caught:
        async with AsyncExitStack() as stack:
            await passed(world, stack, shard)
    return caught.value.reason


async def warmed(world: World, *names: str, length: int = LENGTH) -> bytes:
    """Shards that are complete here; all hold the same bytes."""
    data = data_of(length)
    for name in names or (A,):
        world.origin.put(name, data)
        assert await world.get(name) == data
    await world.quiet()
    return data


async def test_a_complete_shard_is_lent(tmp_path: Path) -> None:
    """The descriptor reads the origin's bytes and cannot write; everything goes back at its end."""
    async with building(tmp_path / "c") as world:
        data = await warmed(world)
        async with AsyncExitStack() as stack:
            file = await passed(world, stack)
            assert os.pread(file.fileno(), LENGTH + 1, 0) == data
            assert fcntl.fcntl(file.fileno(), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            fd_leases = world.cache.fd_lender
            assert (fd_leases.count, fd_leases.segments, world.cache.leased_segments) == (1, 4, 4)
            assert fd_leases.bytes == world.ledger.stored_bytes
        assert (fd_leases.count, fd_leases.bytes, fd_leases.segments) == (0, 0, 0)


async def test_what_is_not_complete_is_not_lent(tmp_path: Path) -> None:
    """Unknown, or partly here: HTTP, and the origin is not asked for it."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(LENGTH))
        assert await refused(world) == "incomplete"
        await world.get(A, first=0, last=10)
        asked = len(world.origin.asked(A))
        assert await refused(world) == "incomplete"
        assert len(world.origin.asked(A)) == asked


async def test_an_empty_shard_is_not_lent(tmp_path: Path) -> None:
    """Nothing can be mapped of it."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, b"")
        await world.get(A)
        assert await refused(world) == "incomplete"


async def test_nothing_leaves_while_it_is_lent(tmp_path: Path) -> None:
    """Neither by hand nor for another shard, which passes through memory instead; afterwards it may."""
    async with building(tmp_path / "c", segments=8) as world:
        data = await warmed(world)
        async with AsyncExitStack() as stack:
            file = await passed(world, stack)
            assert await world.reclaimer.evict(world.entry(A)) == 0
            world.origin.put(B, data_of(7 * SEGMENT, 1))
            assert await world.get(B) == data_of(7 * SEGMENT, 1)
            assert os.pread(file.fileno(), LENGTH, 0) == data
            assert world.entry(A).segments.complete
        assert await world.reclaimer.evict(world.entry(A)) > 0


async def mapped(world: World, shard: str = A) -> mmap.mmap:
    """A map of a shard whose lease has ended."""
    async with AsyncExitStack() as stack:
        file = await passed(world, stack, shard)
        return mmap.mmap(file.fileno(), LENGTH, access=mmap.ACCESS_READ)


async def test_a_map_outlives_the_lease(tmp_path: Path) -> None:
    """The books hold what the kernel holds: nothing of it may leave, its bytes stay right, it can still be read; then all goes back."""
    async with building(tmp_path / "c") as world:
        data = await warmed(world)
        fd_leases = world.cache.fd_lender
        with await mapped(world) as held:
            assert (fd_leases.count, fd_leases.lingering, fd_leases.bytes, fd_leases.segments) == (0, 1, world.ledger.stored_bytes, 4)
            world.cache.fd_lender.look_again()
            assert (fd_leases.lingering, world.cache.leased_segments, world.entry(A).segments.is_held) == (1, 4, True)
            assert await world.reclaimer.evict(world.entry(A)) == 0
            assert world.entry(A).in_use.stuck_until == 0.0  # not even tried
            assert held[:] == data
            assert await world.get(A) == data
        world.cache.fd_lender.look_again()
        assert (fd_leases.lingering, fd_leases.bytes, fd_leases.segments, world.cache.leased_segments) == (0, 0, 0, 0)
        assert await world.reclaimer.evict(world.entry(A)) > 0


async def test_maps_count_towards_half_of_the_cache(tmp_path: Path) -> None:
    """A reader that keeps views of everything gets descriptors for half of the cache; whoever has one of them may have it again."""
    async with building(tmp_path / "c", segments=16) as world:
        data = await warmed(world, A, B)
        await warmed(world, C, length=2 * SEGMENT)
        maps = [await mapped(world, name) for name in (A, B)]
        assert world.cache.fd_lender.bytes <= world.ledger.capacity_bytes // 2
        assert await refused(world, C) == "half"
        maps.append(await mapped(world, B))
        assert (world.cache.fd_lender.lingering, world.cache.fd_lender.segments) == (2, 8)
        maps.pop(0).close()
        world.cache.fd_lender.look_again()
        async with AsyncExitStack() as stack:
            await passed(world, stack, C)
        assert all(held[:] == data for held in maps)
        maps.pop().close()
        world.cache.fd_lender.look_again()
        assert world.cache.fd_lender.lingering == 1  # of two maps one is left
        maps.pop().close()


async def test_a_map_of_an_outdated_version_goes_with_its_end(tmp_path: Path) -> None:
    """It leaves a second after nobody holds it any more, though nobody opens or leaves it then."""
    async with building(tmp_path / "c") as world:
        await warmed(world)
        entry = world.entry(A)
        with await mapped(world):
            world.room.outdated(entry)
            await world.quiet()
            assert entry.segments.complete
        world.cache.fd_lender.look_again()
        await world.quiet()
        assert not entry.segments.stored_count


async def test_a_map_of_an_earlier_life_is_found(tmp_path: Path) -> None:
    """The books of a sidecar that was started anew know nothing of it, until something of that shard should leave."""
    async with building(tmp_path / "c") as world:
        await warmed(world)
        with held_by_a_child(world.shard_file(A)):
            assert world.cache.fd_lender.lingering == 0
            assert await world.reclaimer.evict(world.entry(A)) == 0
            fd_leases = world.cache.fd_lender
            assert (fd_leases.lingering, fd_leases.bytes, fd_leases.segments) == (1, world.ledger.stored_bytes, 4)
            world.cache.fd_lender.look_again()
            assert fd_leases.lingering == 1
        world.cache.fd_lender.look_again()
        assert (fd_leases.lingering, fd_leases.bytes, fd_leases.segments) == (0, 0, 0)
        world.clock.advance(60)
        assert await world.reclaimer.evict(world.entry(A)) > 0


async def test_a_file_that_is_worked_at_is_not_asked_about(tmp_path: Path) -> None:
    """The question takes the very lock that removing and releasing need."""
    async with building(tmp_path / "c") as world:
        await warmed(world)
        entry = world.entry(A)
        held = await mapped(world)
        held.close()
        async with entry.stored.lock:
            world.cache.fd_lender.look_again()
            assert world.cache.fd_lender.lingering == 1


async def test_descriptors_hold_half_of_the_cache_at_most(tmp_path: Path) -> None:
    """One shard is counted once however many have it; one more shard than fits in half is read over HTTP."""
    async with building(tmp_path / "c", segments=16) as world:
        await warmed(world, A, B)
        await stored(world, C, 2)
        async with AsyncExitStack() as stack:
            for worker in range(3):
                await passed(world, stack, A, reader(worker))
            await passed(world, stack, B)
            assert await refused(world, C) == "half"
            assert world.cache.fd_lender.bytes <= world.ledger.capacity_bytes // 2
        async with AsyncExitStack() as stack:
            await passed(world, stack, C)


async def test_a_plan_advances_as_by_a_get(tmp_path: Path) -> None:
    """An opening by descriptor is an opening; one that was refused is none."""
    async with building(tmp_path / "c") as world:
        await warmed(world, A, B)
        world.plans.replace(reader(), [shard_of(A), shard_of(C), shard_of(B)])
        async with AsyncExitStack() as stack:
            await passed(world, stack, A, reader())
            assert world.cache.readers.is_reading(reader())
        assert await refused(world, C) == "incomplete"
        async with AsyncExitStack() as stack:
            await passed(world, stack, B, reader())
        await asyncio.sleep(0)  # who waits for the descriptor does not wait for the books
        assert [fact.how for fact in world.of(ShardOpened)] == ["planned", "skipped"]


async def test_a_job_compares_with_the_origin_first(tmp_path: Path) -> None:
    """As before a GET: another job asks once, and a changed shard is not lent."""
    async with building(tmp_path / "c") as world:
        await warmed(world)
        async with AsyncExitStack() as stack:
            await passed(world, stack, A, reader(job="second"))
        assert [fact.result for fact in world.of(Revalidated)] == ["same"]
        world.origin.put(A, data_of(LENGTH, 5), etag='"v2"')
        with pytest.raises(UseHttp):
            async with AsyncExitStack() as stack:
                await passed(world, stack, A, reader(job="third"))
        assert await world.get(A, reader(job="third")) == data_of(LENGTH, 5)


async def test_another_credential_proves_itself(tmp_path: Path) -> None:
    """Who may not read it over HTTP gets no descriptor."""
    async with building(tmp_path / "c") as world:
        good, also = shard_of(A, credential="Bearer good"), shard_of(A, credential="Bearer also")
        world.origin.put(A, data_of(LENGTH)).allowed = {good.credential, also.credential}
        await world.get(good)
        await world.quiet()
        async with AsyncExitStack() as stack:
            await passed(world, stack, also)
        with pytest.raises(ShardForbidden):
            async with AsyncExitStack() as stack:
                await passed(world, stack, shard_of(A, credential="Bearer bad"))


async def test_what_another_boot_stored_is_verified_first(tmp_path: Path) -> None:
    """All of it, before a byte of it can be read; a wrong segment is found."""
    async with building(tmp_path / "c") as world:
        origin = world.origin
        data = await warmed(world, A, B)
        files = {name: world.shard_file(name) for name in (A, B)}
    with files[B].open("r+b") as file:
        file.seek(2 * SEGMENT)
        file.write(b"\0" * 100)
    async with building(tmp_path / "c", origin=origin, boot="another") as world:
        for entry in world.room.entries.values():
            entry.segments.unverified = set(entry.segments.stored())
        async with AsyncExitStack() as stack:
            file_ = await passed(world, stack)
            assert not world.entry(A).segments.unverified
            assert os.pread(file_.fileno(), LENGTH, 0) == data
        assert await refused(world, B) == "incomplete"
        assert await world.get(B) == data


async def test_what_the_index_does_not_say_yet_is_committed_first(tmp_path: Path) -> None:
    """After a kill nothing of a lent file is taken for unclaimed."""
    async with building(tmp_path / "c") as world:
        await warmed(world)
        world.room.claim(world.entry(A))
        assert world.store.index_writer.unsettled(world.entry(A).key)
        async with AsyncExitStack() as stack:
            await passed(world, stack)
            assert not world.store.index_writer.unsettled(world.entry(A).key)


async def test_a_file_that_was_replaced_is_not_lent(tmp_path: Path) -> None:
    """Another file under the name, or one that was cut, is not what was stored."""
    async with building(tmp_path / "c", checked=False) as world:
        await warmed(world)
        file = world.shard_file(A)
        os.truncate(file, LENGTH - 1)
        assert await refused(world) == "disk"
        os.truncate(file, LENGTH)
        file.rename(tmp_path / "aside")
        file.write_bytes(b"x" * LENGTH)
        assert await refused(world) == "disk"


async def test_a_file_being_removed_is_not_lent(tmp_path: Path) -> None:
    """Somebody has the exclusive lock: not now."""
    async with building(tmp_path / "c") as world:
        await warmed(world)
        with world.shard_file(A).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert await refused(world) == "disk"


async def test_a_failed_allocation_punches_nothing_that_is_held(tmp_path: Path) -> None:
    """A file of an earlier life may be held though its last claim was not committed: what could not be allocated is left as it is."""
    async with building(tmp_path / "c", checked=False) as world:
        data = await warmed(world)
        entry = world.entry(A)
        assert entry.stored.file is not None
        with held_by_a_child(world.shard_file(A)):
            file_io.release(entry.stored.file._fd, 0, SEGMENT)
            assert world.shard_file(A).read_bytes() == data
        file_io.release(entry.stored.file._fd, 0, SEGMENT)
        assert world.shard_file(A).read_bytes() != data


async def test_a_wrong_segment_of_a_lent_shard_is_nobodys(tmp_path: Path) -> None:
    """It cannot be removed, so nobody is lent it, and readers get the origin's bytes."""
    async with building(tmp_path / "c", checked=False) as world:
        data = await warmed(world)
        async with AsyncExitStack() as stack:
            await passed(world, stack)
            with world.shard_file(A).open("r+b") as file:
                file.seek(SEGMENT)
                file.write(b"\0" * 64)
            await world.segment_reader.verify(world.entry(A), LAYOUT.index_of(SEGMENT), "verify")
            assert await refused(world) == "incomplete"
            assert await world.get(A) == data
        assert world.cache.fd_lender.bytes == 0


async def test_a_disk_that_fails_lends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP has its ways around a disk."""
    async with building(tmp_path / "c") as world:
        await warmed(world)
        refuses(monkeypatch, ShardFile, DiskFailed("lend", "EIO", "Input/output error"), "lend")
        assert await refused(world) == "disk"


async def test_prefetched_bytes_count_as_read(tmp_path: Path) -> None:
    """A descriptor's reader may have read any of them: they are nobody's lead any more."""
    async with building(tmp_path / "c", prefetch=True) as world:
        world.origin.put(A, data_of(LENGTH))
        world.plans.replace(reader(), [shard_of(A)])
        world.prefetcher.wake()
        async with asyncio.timeout(60):
            while not (world.resolver.versions.current.get(A) and world.entry(A).segments.complete):
                await asyncio.sleep(0.001)
        await world.quiet()
        async with AsyncExitStack() as stack:
            await passed(world, stack, A, reader())
            assert not world.entry(A).segments.unread
        assert world.room.read_ahead.unread_bytes == 0


async def test_an_encoded_shard_is_not_lent(tmp_path: Path) -> None:
    """Its bytes mean something else than the shard, and only HTTP has a header that says so."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(LENGTH), encoding="gzip")
        await world.get(A)
        await world.quiet()
        assert world.entry(A).segments.complete
        assert await refused(world) == "encoded"


async def test_a_shard_without_its_verdict_is_not_lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the whole is compared with the digest that its origin names, its end is nobody's."""
    async with building(tmp_path / "c") as world:
        await warmed(world)
        with monkeypatch.context() as patch:
            patch.setattr("forebay_proxy.cache.resident.entry.VersionTrust.digest_pending", True)
            assert await refused(world) == "digest"
        async with AsyncExitStack() as stack:
            await passed(world, stack)


async def test_an_outdated_version_is_not_lent(tmp_path: Path) -> None:
    """It serves who is inside, and leaves."""
    async with building(tmp_path / "c") as world:
        await warmed(world)
        entry = world.entry(A)
        async with AsyncExitStack() as stack:
            await passed(world, stack)
            world.room.outdated(entry)
            with pytest.raises(UseHttp):
                world.cache.fd_lender._fit(entry)
        await world.quiet()
        assert not entry.segments.stored_count
