"""How far a shard version is believed."""

from __future__ import annotations

from forebay_proxy.cache.resident.digest_state import DigestState, DigestVerdict
from forebay_proxy.cache.resident.version_trust import MOST_JOBS, VersionTrust


def test_a_job_that_was_told_need_not_ask_again() -> None:
    """The others do, and the moment is the last one."""
    trust = VersionTrust()
    trust.checked("one", 5.0)
    trust.checked("two", 6.0)
    assert (trust.checked_jobs, trust.checked_at) == ({"one", "two"}, 6.0)


def test_made_up_jobs_are_forgotten() -> None:
    """All at once: each of them asks once more."""
    trust = VersionTrust()
    for number in range(MOST_JOBS + 1):
        trust.checked(f"j{number}", 1.0)
    assert trust.checked_jobs == {f"j{MOST_JOBS}"}


def test_the_end_waits_for_the_digest_while_one_is_expected() -> None:
    """Not before the origin has named one, nor once it has come out."""
    trust = VersionTrust()
    assert not trust.digest_pending
    trust.digest_state = DigestState(None)
    assert trust.digest_pending
    trust.digest_state.verdict = DigestVerdict.AGREES
    assert not trust.digest_pending
