"""What is known of whether one shard version is right: for which jobs the origin confirmed it, its digest, what was found wrong in it."""

from __future__ import annotations

from forebay_proxy.cache.resident.digest_state import DigestState

__all__ = ["VersionTrust"]

# Of each version, because clients may make up names of jobs. One that is forgotten costs one small request to the origin if it comes back.
MOST_JOBS = 64


class VersionTrust:
    """How far a shard version may be believed. Not thread-safe: the event loop's only."""

    __slots__ = ("checked_at", "checked_jobs", "denials", "digest_state", "no_digest", "no_tar", "no_tar_told", "remade", "wrong")

    def __init__(self) -> None:
        self.checked_jobs: set[str] = set()  # that need not ask the origin again; "" is who names none
        self.checked_at = 0.0  # monotonic seconds
        self.digest_state: DigestState | None = None  # set once the origin has named a digest of the whole, or is asked for it
        self.no_digest = False  # it names none, or none that can be computed here
        self.denials = 0  # how often in a row the origin said that it has another version
        self.wrong = 0  # segments found to be other bytes than were stored
        self.remade = 0  # how often bytes served under this name were wrong: such a version gets another ETag each time
        self.no_tar: str | None = None  # why it is no tar, though its name says so; "": it may be one; None: nobody has looked
        self.no_tar_told = False  # in the log

    def __repr__(self) -> str:
        return f"<VersionTrust {len(self.checked_jobs)} jobs, {self.digest_state!r}, {self.wrong} wrong>"

    def checked(self, job: str, now: float) -> None:
        """The origin said at ``now`` (monotonic seconds) that this is what it holds; ``job`` need not ask again."""
        if len(self.checked_jobs) >= MOST_JOBS:
            self.checked_jobs.clear()
        self.checked_jobs.add(job)
        self.checked_at = now

    @property
    def digest_pending(self) -> bool:
        """Whether the last segment still waits for the whole to be compared with its digest."""
        return self.digest_state is not None and self.digest_state.closed
