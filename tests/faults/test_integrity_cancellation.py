"""Cancelled or shut down at each await around digests and verification: nothing is held, nobody waits for ever, no wrong byte is whole."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from pathlib import Path

import pytest
from support.cancelling import When, at_each_await
from support.fake_origin import FakeOrigin
from support.house import SEGMENT, World, building, data_of, reader, until

from forebay_proxy.core.digests import Digest
from forebay_proxy.core.errors import DigestDiffers, ForebayError
from forebay_proxy.core.shard import Pin, Shard
from forebay_proxy.origins.base import TellsDigests

A = "https://o/set/a.tar"
DATA = data_of(3 * SEGMENT + 77)
NAMED = (Digest("sha-256", hashlib.sha256(DATA).digest()),)


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("flip", [False, True])
async def test_a_reader_that_leaves(tmp_path: Path, when: When, flip: bool) -> None:
    """Beside another one who stays, with right and with wrong bytes."""
    async for cut in at_each_await(when):
        async with building(tmp_path / f"c{cut.number}") as world:
            remote = world.origin.put(A, DATA, digests=NAMED)
            if flip:
                remote.flip(SEGMENT + 3)
            other = asyncio.create_task(world.get(A, reader(1)))
            got = await asyncio.gather(cut.run(world.get(A, reader(0))), other, return_exceptions=True)
            assert all(one in (None, DATA) or (flip and isinstance(one, DigestDiffers)) for one in got), got
            assert await world.get(A) == DATA


@pytest.mark.parametrize("when", When)
async def test_a_verification_that_is_left(tmp_path: Path, when: When) -> None:
    """What it had found wrong is gone or still there, never in between."""
    async for cut in at_each_await(when):
        async with building(tmp_path / f"c{cut.number}") as world:
            world.origin.put(A, DATA)
            await world.get(A)
            await world.quiet()
            with world.shard_file(A).open("r+b") as file:
                file.seek(SEGMENT)
                file.write(b"rotten")
            world.entry(A).segments.unverified = {1}
            await cut.run(_verify(world))
            await world.quiet()
            assert await world.get(A) == DATA


async def _verify(world: World) -> None:
    async for _ in world.operations.verify(None):
        pass


async def test_a_shutdown_at_any_moment(tmp_path: Path) -> None:
    """As the service does it: flights and openings are cancelled, hashing stops, the tasks end."""
    for moment in range(1, 60, 3):
        async with building(tmp_path / f"c{moment}", checked=False) as world:
            world.origin.put(A, DATA, digests=NAMED)
            reads = [asyncio.create_task(world.get(A, reader(number))) for number in range(3)]
            for _ in range(moment):
                await asyncio.sleep(0)
            for read in reads:
                read.cancel()
            world.resolver.cancel()
            world.fetches.cancel()
            world.digest_check.stop()
            async with asyncio.timeout(60):
                await world.tasks.idle()
                await asyncio.wait(reads)
            assert not world.digest_check._hashing
            assert world.cache.leased_segments == 0


class Asked(FakeOrigin):
    """An origin that names its digests when asked, and may never answer."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_digests = 0
        self.answer: tuple[Digest, ...] = ()
        self.gate = asyncio.Event()

    async def digests(self, shard: Shard, pin: Pin) -> tuple[Digest, ...]:
        self.asked_digests += 1
        assert pin.value == '"v1"'
        await self.gate.wait()
        return self.answer

    def release(self) -> None:
        super().release()
        self.gate.set()


async def test_an_origin_that_must_be_asked_is_asked_once(tmp_path: Path) -> None:
    """Per version, whoever reads it and however many; the answer is compared."""
    origin = Asked()
    assert isinstance(origin, TellsDigests)
    origin.answer = NAMED
    origin.gate.set()
    async with building(tmp_path / "c", origin=origin) as world:
        world.origin.put(A, DATA)
        assert await asyncio.gather(*(world.get(A, reader(number)) for number in range(4))) == [DATA] * 4
        await world.reclaimer.discard(world.entry(A), 1)
        assert await world.get(A) == DATA
        assert origin.asked_digests == 1
        digest_state = world.entry(A).trust.digest_state
        assert digest_state is not None
        assert digest_state.computed() == NAMED[0]


@pytest.mark.parametrize("answer", [(), (Digest("sha-256", bytes(32)),)])
async def test_an_answer_that_is_late_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: tuple[Digest, ...]) -> None:
    """The reader goes on after a moment; what comes later still counts for the next one."""
    monkeypatch.setattr("forebay_proxy.cache.integrity.digest_check.ASKED_S", 0.01)
    origin = Asked()
    origin.answer = answer
    async with building(tmp_path / "c", origin=origin) as world:
        world.origin.put(A, DATA)
        assert await world.get(A) == DATA
        origin.gate.set()
        await world.quiet()
        if answer:
            with pytest.raises(DigestDiffers):  # the first fetch was found wrong behind the reader's back, this is the second
                await world.get(A)
        else:
            assert await world.get(A) == DATA
            assert world.entry(A).trust.digest_state is None


async def test_a_shutdown_does_not_wait_for_the_answer(tmp_path: Path) -> None:
    """The question is withdrawn."""
    origin = Asked()
    async with building(tmp_path / "c", origin=origin, checked=False) as world:
        world.origin.put(A, DATA)
        reading = asyncio.create_task(world.get(A))
        await until(lambda: origin.asked_digests)
        reading.cancel()
        with suppress(asyncio.CancelledError, ForebayError):
            await reading
        world.resolver.cancel()
        world.fetches.cancel()
        world.digest_check.stop()
        async with asyncio.timeout(60):
            await world.tasks.idle()
        assert not origin.gate.is_set()


async def test_a_plain_origin_is_not_asked(tmp_path: Path) -> None:
    """It has said what it has to say with its answers."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        assert not world.fetcher.asked_schemes
        assert await world.get(A) == DATA
        assert world.origin.heads() == 0
