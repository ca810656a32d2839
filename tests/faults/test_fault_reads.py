"""Very many reads through a real sidecar whose origin lies: each is whole and of one version, or an error; nearly all are whole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.fault_kinds import KINDS, Ends
from support.fault_reads import Campaign, Tally, away_now_and_then, forbidden
from support.lengths import ordinarily
from support.scripted_origin import ScriptedOrigin
from support.sidecar import Sidecar, running, small_segments

READS = ordinarily(400, of=2000, what="reads from an origin that lies")
SEGMENT = 1 << 16  # shards of up to eight segments, and 300 MB in all: the faults are what takes time
SEED = int(os.environ.get("FAULT_SEED", "1"))
# Real time, made short by settings only: what stalls is asked again after 1.5 s, and no Retry-After of the script is longer than 1 s.
PATIENCE = ("--connect-timeout-s", "2", "--idle-timeout-s", "1.5", "--retry-budget-s", "60")


@contextmanager
def sidecar_of(directory: Path, origin: ScriptedOrigin) -> Iterator[Sidecar]:
    """A cache far smaller than what is read, so that segments leave and some reads pass by the disk."""
    allow = [origin.base, f"http://localhost:{origin.port}"]
    with running(directory, "--cache-size", "24MiB", *PATIENCE, allow=allow, program=small_segments(SEGMENT)) as sidecar:
        yield sidecar


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Tally:
    """The run that all tests here speak of."""
    return asyncio.run(_run(tmp_path_factory.mktemp("faults")))


async def _run(directory: Path) -> Tally:
    async with ScriptedOrigin() as origin, forbidden() as (url, met):
        with sidecar_of(directory, origin) as sidecar:
            async with asyncio.timeout(270):  # two thousand reads take 80 s, and beside busy programs three times that
                storms = asyncio.create_task(away_now_and_then(origin))
                try:
                    campaign = Campaign(origin, lambda: sidecar.port, seed=SEED, segment=SEGMENT, forbidden=url)
                    tally = await campaign.run(READS)
                finally:
                    storms.cancel()
            assert not met, "a redirect was followed to where nobody may go"
            log = sidecar.log_text()
    assert "a fault in Forebay itself" not in log, log[-4000:]
    assert "unexpectedly" not in log, log[-4000:]
    print(tally.table())
    return tally


def test_no_read_got_a_wrong_byte(told: Tally) -> None:
    """Clean answers are one version whole, aborted ones the beginning of one."""
    assert told.reads() >= READS
    assert told.wrong == []


def test_nearly_all_that_can_be_read_were_read(told: Tally) -> None:
    """At least 99 of 100, of those for which a right answer exists."""
    assert told.complete(Ends.MENDS) >= 0.99 * told.reads(Ends.MENDS), told.table()


def test_what_nobody_can_read_is_an_error(told: Tally) -> None:
    """An origin that insists on its lie, a redirect to where nobody may go, an end that cannot be told from a cut."""
    assert told.reads(Ends.FAILS) > 0
    assert told.complete(Ends.FAILS) == 0, told.table()


def test_every_kind_of_trouble_had_its_turn(told: Tally) -> None:
    """None is left out by chance."""
    assert set(told.ends) == set(KINDS)
