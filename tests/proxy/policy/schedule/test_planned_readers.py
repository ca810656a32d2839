"""The readers that have announced something, and their cursors."""

from __future__ import annotations

from forebay_proxy.policy.schedule.planned_readers import SLOW, START_BYTES_S, JobRates


def test_nothing_measured_is_a_usual_rate() -> None:
    """Also with an interval of none."""
    job_rates = JobRates()
    assert job_rates.rate("job") == START_BYTES_S
    job_rates.learn("job", 0.0, 100)
    assert job_rates.rate("job") == START_BYTES_S


def test_an_interval_counts_as_long_as_it_was() -> None:
    """A burst of short ones is no rate: 110 bytes in 10.1 s."""
    job_rates = JobRates()
    job_rates.learn("job", 10.0, 100)
    job_rates.learn("job", 0.1, 10)
    assert 10 < job_rates.rate("job") < 12


def test_only_one_that_is_far_slower_goes_at_its_own_pace() -> None:
    """Shards of unlike lengths alone do not make it so."""
    job_rates = JobRates()
    job_rates.learn("job", 1.0, 100)
    assert job_rates.rate("job", 4.0) == job_rates.rate("job", SLOW) == 100
    assert job_rates.rate("job", SLOW / 2) == 100 * SLOW / 2
    assert job_rates.rate("other") == START_BYTES_S
