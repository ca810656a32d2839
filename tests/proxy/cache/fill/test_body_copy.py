"""One origin body into one segment writer: which answers are about the version being fetched."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from forebay_proxy.cache.fetching.body_copy import Stopwatch, check
from support.house import SEGMENT, building, data_of, shard_of

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.errors import OriginLied, ShardChanged
from forebay_proxy.core.segments import DEFAULT_LAYOUT
from forebay_proxy.core.shard import ByteRange, Pin, Version
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.transfer.bandwidth import LEAST_BYTES, BandwidthEstimate, ConnectionRate

WANT = ByteRange(10, 19)


async def no_bytes() -> AsyncIterator[bytes]:
    return
    yield b""


def version(identity: str = "etag:v1", length: int | None = 100, encoding: str = "") -> Version:
    return Version(identity, Pin(), length, encoding)


def checked(mine: Version, theirs: Version, *, ranged: bool = True) -> None:
    entry = Entry("k" * 64, shard_of("https://o/a.tar"), mine, DEFAULT_LAYOUT, ranged=True)
    check(entry, OriginBody(theirs, 10 if ranged else 0, 10, ranged, True, no_bytes()), WANT)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (version(), version()),
        (version(), version(length=None)),  # Content-Range with a star
        (version(length=None), version()),
        (version(""), version("")),
    ],
)
def test_the_same_version_is_taken(mine: Version, theirs: Version) -> None:
    """A length that is not said is no contradiction."""
    checked(mine, theirs)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (version(), version("etag:v2")),
        (version(""), version("etag:v1")),
        (version(""), version("", length=99)),  # all there is to tell two nameless ones apart
        (version(""), version("", encoding="gzip")),
    ],
)
def test_another_version_is_a_change(mine: Version, theirs: Version) -> None:
    """Bytes of two versions never meet."""
    with pytest.raises(ShardChanged):
        checked(mine, theirs)


@pytest.mark.parametrize("theirs", [version(length=99), version(encoding="gzip"), version("etag:v2", encoding="gzip"), version("")])
def test_the_same_name_for_something_else_is_a_lie(theirs: Version) -> None:
    """Of what we hold: if the origin insists, the shard is opened anew."""
    with pytest.raises(OriginLied) as raised:
        checked(version(), theirs)
    assert raised.value.of_version


def test_a_whole_body_needs_a_length_to_be_the_same() -> None:
    """Then what is needed is taken of it."""
    checked(version(), version(), ranged=False)
    with pytest.raises(OriginLied):
        checked(version(), version(length=None), ranged=False)


def test_the_stopwatch_tells_the_pace_of_a_whole_body() -> None:
    """From its headers to its last byte, with the most company it had."""
    now, company, connection_rate = [0.0], [1], ConnectionRate()
    stopwatch = Stopwatch(connection_rate, BandwidthEstimate(), lambda: company[0], lambda: now[0])
    stopwatch.came(LEAST_BYTES)
    now[0] = 2.0
    stopwatch.ended()
    assert connection_rate.connection_bytes_s == LEAST_BYTES / 2
    company[0] = 10
    busy = Stopwatch(connection_rate, BandwidthEstimate(), lambda: company[0], lambda: now[0])
    company[0] = 1
    busy.came(LEAST_BYTES * 100)
    now[0] = 2.1
    busy.ended()
    assert connection_rate.connection_bytes_s == LEAST_BYTES / 2


async def test_what_is_left_of_a_body_is_not_left_to_the_collector(tmp_path: Path) -> None:
    """A whole body where a range was asked for is left in its middle: what took its bytes has ended when its flight has."""
    begun = list[AsyncGenerator[Any, Any]]()
    async with building(tmp_path / "c") as world:
        remote = world.origin.put("https://o/a.tar", data := data_of(3 * SEGMENT))
        assert await world.get("https://o/a.tar") == data
        await world.quiet()
        await world.reclaimer.discard(world.entry("https://o/a.tar"), 1)
        remote.ranged = False
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=begun.append)  # the list keeps them: nothing is collected here
        try:
            assert await world.get("https://o/a.tar") == data
            await world.quiet()
        finally:
            sys.set_asyncgen_hooks(*hooks)
        assert "BodyCopy._needed" in {generator.__qualname__ for generator in begun}
        assert not [generator for generator in begun if generator.ag_frame is not None]
