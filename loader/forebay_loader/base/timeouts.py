"""How long to wait for what: the time limits of a stream, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["DEFAULT_LIMITS", "Limits"]


@dataclass(frozen=True)
class Limits:
    """How long a reader waits for what, in seconds. All are well below the 600 s of NCCL's watchdog. It cannot be changed:
    ``dataclasses.replace`` makes another one.

    Args:
        resume_s: How long a broken stream asks the sidecar again before it continues at the origin. It also limits a new opening if there
            is no other way to the shard, and the wait for a hanging sidecar if the origin has refused the shard.
        tell_s: How long trouble lasts before a log line says that a shard is waited for.
        open_s: How long a new opening waits for a sidecar that is gone, if there is another way to the shard.
        connect_s: For a connection to the sidecar, which is on this machine.
        look_s: After this long without a first answer, ask whether the sidecar still runs. Wait on only if it does.
        silence_s: After this long without a byte inside a shard, ask the same.
        patience_s: How long a running sidecar may be silent. It works through trouble of the origin for 300 s itself. It also limits the
            wait for a hanging sidecar if there is no other way to the shard.
        direct_silence_s: How long an origin that is asked directly may be silent.
        pause_s: The first pause between two tries. Each pause is twice as long as the one before.
        longest_pause_s: The longest pause between two tries.
        jitter_s: The longest random pause before a direct opening, so that the workers of a node do not all come at once.

    Raises:
        TypeError: A name is not one of these.

    Examples:
        A node whose sidecar takes five minutes to come back:

        >>> dataset = fb.WebDataset(urls, limits=fb.Limits(resume_s=300))
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
