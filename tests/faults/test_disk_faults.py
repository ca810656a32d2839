"""A bad disk degrades and never fails a client: the cases of tests/support/disk_cases.py, the rare ones excepted, under a real sidecar.

The cases wait much and work little (a failed disk rests for a minute), so all of them are played at the same time; each test looks
at its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from support import nginx as servers
from support.disk_cases import CASES, Case, Told, make_shards, play
from support.disks import needs_mounts
from support.lengths import ordinarily

pytestmark = [
    pytest.mark.needs("nginx", "gcc", "nsenter", "findmnt"),
    needs_mounts,
]
AKIN = [case for case in CASES if case.akin]
PLAYED = [case for case in CASES if not case.rare and not case.akin]
PLAYED += AKIN[: ordinarily(0, of=len(AKIN), what="troubles of a disk that are like another one")]
SHARDS_MB = ordinarily(10, of=40, what="MB of shards on each bad disk")
SHRINK = 40 // SHARDS_MB
AT_A_TIME = 8  # each has a sidecar, a sampler and eight readers


@pytest.fixture(scope="module")
def played() -> Iterator[Mapping[str, Future[Told]]]:
    """All cases, being played."""
    with tempfile.TemporaryDirectory(prefix="forebay-disk-") as directory:
        place = Path(directory)
        files = make_shards(place / "files", SHRINK)
        with servers.nginx(place / "nginx", files) as origin, ThreadPoolExecutor(AT_A_TIME) as pool:

            def begin(case: Case) -> Told:
                (place / case.name).mkdir()
                return play(case, place / case.name, files, origin, SHRINK)

            futures = {case.name: pool.submit(begin, case) for case in PLAYED}
            try:
                yield futures
            finally:
                pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("case", PLAYED, ids=lambda case: case.name)
def test_no_reader_notices(case: Case, played: Mapping[str, Future[Told]]) -> None:
    """Every byte right, no error, the bound held, one log line a change; and back to normal when the disk is."""
    told = played[case.name].result()
    print({name: value for name, value in vars(told).items() if name != "log"}, told.log, sep="\n")
    assert told.client_errors == 0
    assert told.seen.peak_bytes <= case.limit // SHRINK
    assert told.lines <= 2 * len(told.states) + 2, told.log
    if case.down:
        assert "down" in told.states
    assert told.states[-1] == ("normal" if case.mended else "down")


def test_warm_shards_are_read_on_while_nothing_can_be_written(played: Mapping[str, Future[Told]]) -> None:
    """A read-only disk still has its bytes."""
    told = played["read-only"].result()
    assert told.hits_meanwhile > 0
    assert told.bypass_meanwhile == 0
