"""The rate that the readers of a job share."""

from __future__ import annotations

from forebay_proxy.policy.schedule.job_rate import SLOW, START_BYTES_S, JobRates


def test_nothing_measured_is_a_usual_rate() -> None:
    """Also with an interval of none."""
    together = JobRates()
    assert together.rate("job") == START_BYTES_S
    together.took("job", 0.0, 100)
    assert together.rate("job") == START_BYTES_S


def test_an_interval_counts_as_long_as_it_was() -> None:
    """A burst of short ones is no rate: 110 bytes in 10.1 s."""
    together = JobRates()
    together.took("job", 10.0, 100)
    together.took("job", 0.1, 10)
    assert 10 < together.rate("job") < 12


def test_only_one_that_is_far_slower_goes_at_its_own_pace() -> None:
    """Shards of unlike lengths alone do not make it so."""
    together = JobRates()
    together.took("job", 1.0, 100)
    assert together.rate("job", 4.0) == together.rate("job", SLOW) == 100
    assert together.rate("job", SLOW / 2) == 100 * SLOW / 2
    assert together.rate("other") == START_BYTES_S
