"""Segments in any order, with leaving and coming again in between: hashed as one file would be, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.house import SEGMENT, building, data_of, reader
from support.lengths import examples

from forebay_proxy.cache.resident.digest_state import DigestVerdict
from forebay_proxy.core.digests import ALGORITHMS, Digest, hasher_of
from forebay_proxy.core.errors import DigestDiffers
from forebay_proxy.core.facts.cache import DigestChecked

A = "https://o/set/a.tar"
SEGMENTS = 6

orders = st.permutations(range(SEGMENTS))
leaving = st.sets(st.integers(0, SEGMENTS - 2), max_size=2)


def _digest(algorithm: str, data: bytes) -> Digest:
    hasher = hasher_of(algorithm)
    hasher.update(data)
    return Digest(algorithm, hasher.digest())


@settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(order=orders, gone=leaving, algorithm=st.sampled_from(ALGORITHMS), tail=st.integers(1, SEGMENT), at_once=st.booleans())
def test_any_order_comes_to_the_same_digest(order: list[int], gone: set[int], algorithm: str, tail: int, at_once: bool) -> None:
    """Ranged readers bring the segments; some leave before or after their turn; in the end a whole reader comes."""

    async def scenario(path: Path) -> None:
        async with building(path) as world:
            data = data_of((SEGMENTS - 1) * SEGMENT + tail)
            world.origin.put(A, data, digests=(_digest(algorithm, data),))
            reads = [world.get(A, reader(n), n * SEGMENT, min(len(data), (n + 1) * SEGMENT) - 1) for n in order]
            got = await asyncio.gather(*reads) if at_once else [await read for read in reads]
            assert got == [data[n * SEGMENT : (n + 1) * SEGMENT] for n in order]
            for index in gone:
                await world.reclaimer.discard(world.entry(A), index)
            async with asyncio.timeout(60):
                assert await world.get(A) == data
            await world.quiet()
            digest_state = world.entry(A).trust.digest_state
            assert digest_state is not None
            assert digest_state.verdict is DigestVerdict.AGREES
            assert digest_state.computed() == digest_state.expected
            assert [fact.result for fact in world.of(DigestChecked)].count("agrees") == 1

    with tempfile.TemporaryDirectory() as path:
        asyncio.run(scenario(Path(path) / "c"))


@settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(order=orders, wrong=st.integers(0, SEGMENTS * SEGMENT - 1), readers=st.integers(1, 3))
def test_one_wrong_byte_anywhere_never_ends_well(order: list[int], wrong: int, readers: int) -> None:
    """Whatever came first: no reader of the whole ends cleanly with it, and the next fetch heals it."""

    async def scenario(path: Path) -> None:
        async with building(path) as world:
            data = data_of(SEGMENTS * SEGMENT)
            remote = world.origin.put(A, data, digests=(_digest("sha-256", data),))
            remote.flip(wrong)
            for n in order[:-1]:
                await _tolerant(world.get(A, reader(n), n * SEGMENT, (n + 1) * SEGMENT - 1))
            async with asyncio.timeout(60):
                results = await asyncio.gather(*(_tolerant(world.get(A, reader(10 + n))) for n in range(readers)))
            assert all(result in (None, data) for result in results)
            assert await world.get(A) == data

    with tempfile.TemporaryDirectory() as path:
        asyncio.run(scenario(Path(path) / "c"))


async def _tolerant(reading: object) -> bytes | None:
    try:
        return await reading  # type: ignore[misc,no-any-return]
    except DigestDiffers:
        return None
