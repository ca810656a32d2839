"""Who uses a shard version now."""

from __future__ import annotations

import asyncio

import pytest

from forebay_proxy.cache.resident.version_use import VersionUse
from forebay_proxy.transfer.flights import Flight


@pytest.mark.parametrize("what", ["readers", "flying"])
def test_whoever_is_inside_keeps_it_from_being_idle(what: str) -> None:
    """A reader, or a flight."""
    use = VersionUse()
    assert use.idle
    setattr(use, what, 1)
    assert not use.idle


async def test_a_segment_that_is_leaving_keeps_it_from_being_idle() -> None:
    """Its file is being worked at."""
    use = VersionUse()
    use.leaving[0] = asyncio.get_running_loop().create_future()
    assert not use.idle


async def test_a_body_streams_until_its_flight_ends() -> None:
    """What one flight brought can still be found afterwards."""
    use = VersionUse()
    assert not use.streaming
    use.stream = Flight(0, 10, 0.0, 0.0)
    assert use.streaming
    use.stream.ended()
    assert not use.streaming
    assert use.stream is not None


def test_what_a_log_shows() -> None:
    """How many are inside, and that it leaves."""
    use = VersionUse()
    use.readers, use.stale = 2, True
    assert repr(use) == "<VersionUse 2 readers, 0 flying, 0 leaving, stale>"
