"""How long recorded readers took by themselves, from when they opened shards and what was waited for them."""

from __future__ import annotations

import pytest
from support.replays import name_of, shards

from forebay_proxy.simulate.paces import RecordedOpening, own_seconds
from forebay_proxy.wire.protocol.plan import ReaderName

SHARD = shards(1)[0]
READER = ReaderName("j", "0", "0", "1.0")


def opened(moment: float, waited_s: float | None = 0.0, seconds: float | None = None) -> RecordedOpening:
    return RecordedOpening(moment, SHARD, waited_s, seconds)


def own(*openings: RecordedOpening, length: int | None = 100) -> tuple[float, ...]:
    """Of one reader in one epoch."""
    ((epoch,),) = own_seconds({READER: [openings]}, {} if length is None else {name_of(0): length}).values()
    return epoch


def test_without_waiting_all_time_is_its_own() -> None:
    """Also a pause: whoever wants that shard meanwhile finds a reader inside."""
    assert own(opened(0), opened(1), opened(61), opened(62, 0.0, 1.5)) == (1.0, 60.0, 1.0, 1.5)


def test_waiting_beside_its_work() -> None:
    """The sidecar waited two seconds while the reader took a second as always: it lost one."""
    assert own(opened(0), opened(1), opened(2), opened(3, 2.0), opened(5), opened(6, 0.0, 1.0)) == (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)


def test_between_what_is_certain() -> None:
    """Never less than what was not waited for, never more than there was."""
    assert own(opened(0), opened(10), opened(20, 2.0), opened(40, 4.0), opened(48, 0.0, 10.0)) == (10.0, 10.0, 18.0, 8.0, 10.0)


def test_the_last_shard_of_an_epoch() -> None:
    """How long it worked on what had been sent last nobody saw: as long as usual at least."""
    assert own(opened(0), opened(2), opened(4, 3.0, 3.5))[-1] == 2.0
    assert own(opened(0), opened(2), opened(4, 1.0, 9.0))[-1] == 8.0


@pytest.mark.parametrize("length", [100, None])
def test_readers_that_always_waited(length: int | None) -> None:
    """Their pace never showed: only what was not waited for is theirs for certain. The same without lengths."""
    assert own(opened(0, 1.0), opened(2, 1.5), opened(4, 0.5, 2.0), length=length) == (1.0, 0.5, 1.5)


def test_readers_of_a_job_share_what_is_known() -> None:
    """One that always waited takes shards as its siblings do, one of another job does not."""
    sibling, stranger = ReaderName("j", "0", "1", "1.0"), ReaderName("k", "0", "0", "1.0")
    waited = [[opened(0, 3.0), opened(4, 3.0, 3.0)]]
    found = own_seconds({READER: [[opened(0), opened(2), opened(4, 0.0, 2.0)]], sibling: waited, stranger: waited}, {name_of(0): 100})
    assert (found[sibling], found[stranger]) == (((2.0, 2.0),), ((1.0, 0.0),))


def test_a_log_that_does_not_tell() -> None:
    """One opening without its waiting, and nothing is said of its reader."""
    assert own_seconds({READER: [[opened(0), opened(1, None)]]}, {name_of(0): 100}) == {}
