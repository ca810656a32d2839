"""How long to wait for what: the time limits of a stream, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["DEFAULT_LIMITS", "Limits"]


@dataclass(frozen=True)
class Limits:
    """How long a reader waits for what. Seconds, all of them, so that a worker stays well inside the 600 s of NCCL's watchdog.

    Example: ``fb.WebDataset(urls, limits=fb.Limits(resume_s=300))`` for a sidecar whose node takes five minutes to come back.

    - ``resume_s``: how long a broken stream asks the sidecar again before it goes on at the origin; and a new opening, where no other way
      leads to the shard. So long one that hangs is waited for where the origin itself has refused the shard.
    - ``tell_s``: of trouble before a person is told that a shard is waited for.
    - ``open_s``: how long a new opening waits for a sidecar that is gone, where there is another way.
    - ``connect_s``: for a connection to the sidecar, which is on this machine.
    - ``look_s``: no first answer for so long: ask the sidecar whether it turns at all, and wait on only if it does.
    - ``silence_s``: no byte for so long inside a shard: the same question.
    - ``patience_s``: silence of a sidecar that turns; it rides out trouble of the origin for 300 s itself. Also of one that hangs, where no
      other way leads to the shard.
    - ``direct_silence_s``: no byte from an origin that is asked directly.
    - ``pause_s``, ``longest_pause_s``: first pause between two tries, doubling up to the longest.
    - ``jitter_s``: at most, before a direct opening, so that the workers of a node do not all come at once.

    Raises ``TypeError`` for another name. It cannot be changed; ``dataclasses.replace`` makes another one.
    """

    resume_s: float = 60.0  # a restarted sidecar loads its index in seconds; a rescheduled one in under a minute
    tell_s: float = 5.0  # of trouble, or of waiting for an answer, before a person is told that a shard is waited for
    open_s: float = 2.0  # a new open of a dead sidecar, before another way: long enough for a quick restart, short enough not to be felt
    connect_s: float = 2.0  # it is on this machine: it accepts at once, or it is not there
    look_s: float = 3.0  # no answer for this long: ask /healthz whether the sidecar turns at all, and wait on only if it does
    silence_s: float = 30.0  # no byte for this long: ask /healthz whether the sidecar still turns
    patience_s: float = 330.0  # silence of a sidecar that turns: it rides out origin trouble for 300 s itself
    direct_silence_s: float = 60.0  # no byte from an origin asked directly
    pause_s: float = 0.05  # first pause between two tries, doubling up to longest_pause_s
    longest_pause_s: float = 1.0  # so that a sidecar that is back is noticed within a second
    jitter_s: float = 0.25  # before a direct opening: the workers of a node lose their sidecar in the same instant

    def __repr__(self) -> str:
        """Only what differs: as a default it stands in every signature."""
        differing = (f"{one.name}={getattr(self, one.name)}" for one in fields(self) if getattr(self, one.name) != one.default)
        return f"Limits({', '.join(differing)})"


DEFAULT_LIMITS = Limits()
