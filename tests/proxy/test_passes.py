"""What is guessed of shards that nobody announced."""

from __future__ import annotations

from support.house import shard_of

from forebay_proxy.passes import GROUP_LIFE_S, Passes

GROUP = "https://o/set/"
A, B = shard_of(f"{GROUP}a.tar"), shard_of(f"{GROUP}b.tar")


def test_a_shard_is_unread_by_the_jobs_that_have_not_opened_it() -> None:
    """In their present pass, which begins again with the first repeat."""
    passes = Passes()
    passes.opened(A, "one", 1.0)
    passes.opened(B, "two", 2.0)
    assert (passes.unread_by(A.name, GROUP, 2.0), passes.unread_by(B.name, GROUP, 2.0)) == (["two"], ["one"])
    passes.opened(B, "one", 3.0)
    passes.opened(A, "one", 4.0)
    assert passes.unread_by(B.name, GROUP, 4.0) == ["one"]


def test_what_was_asked_for_ahead_waits_for_the_first_job() -> None:
    """From then on only jobs count."""
    passes = Passes()
    passes.declare(A, 1.0)
    assert passes.unread_by(A.name, GROUP, 1.0) != []
    passes.opened(A, "one", 2.0)
    assert passes.unread_by(A.name, GROUP, 2.0) == []


def test_a_job_that_is_gone_waits_for_nothing() -> None:
    """A group lives as long as somebody opens it; a job of it only as long as it does itself."""
    passes = Passes()
    passes.opened(A, "gone", 0.0)
    passes.opened(B, "here", GROUP_LIFE_S)
    assert passes.unread_by(B.name, GROUP, GROUP_LIFE_S) == []


def test_a_group_nobody_opens_is_dead_and_forgotten() -> None:
    """Dead at once, forgotten with the next look."""
    passes = Passes()
    passes.opened(A, "one", 0.0)
    assert passes.unread_by(A.name, GROUP, GROUP_LIFE_S + 1) is None
    assert len(passes) == 1
    passes.expire(GROUP_LIFE_S + 1)
    assert len(passes) == 0


def test_the_last_opening_is_known_until_the_shard_is_forgotten() -> None:
    """Whoever opened it."""
    passes = Passes()
    passes.opened(A, "one", 5.0)
    assert passes.last_opened(A.name) == 5.0
    passes.forget(A.name)
    assert passes.last_opened(A.name) is None
