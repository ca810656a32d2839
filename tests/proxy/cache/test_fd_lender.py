"""The way into a shard by descriptor; its books are ``FdLeases``'s."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.house import SEGMENT, World, building, data_of, reader, shard_of

from forebay_proxy.cache.fd_lease import UseHttp

A = "https://origin.example/a/a.tar"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with building(tmp_path / "c", segments=8) as world:
        world.origin.put(A, data_of(2 * SEGMENT))
        yield world


async def test_what_is_not_here_whole_is_read_by_http(world: World) -> None:
    """Before the origin is asked anything."""
    with pytest.raises(UseHttp, match="not complete"):
        world.cache.fd_lender.lend(shard_of(A), reader())
    assert world.origin.asked(A) == []


async def test_who_has_a_descriptor_is_a_reader_until_it_is_taken_back(world: World) -> None:
    """By the same steps as the door takes them."""
    await world.get(A, reader())
    await world.quiet()
    lent = world.cache.fd_lender.lend(shard_of(A), reader()) or await world.cache.fd_lender.lend_when_ready(shard_of(A), reader())
    os.close(lent.descriptor)
    assert (world.cache.readers.is_reading(reader()), world.entry(A).in_use.readers, world.fd_leases.count) == (True, 1, 1)
    lent.passed()
    lent.end()
    lent.release()
    assert (world.cache.readers.is_reading(reader()), world.entry(A).in_use.readers, world.fd_leases.count) == (False, 0, 0)
    world.cache.fd_lender.look_again()
