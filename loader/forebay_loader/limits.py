"""How long to wait for what: the time limits of a stream, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_LIMITS", "Limits"]


@dataclass(frozen=True)
class Limits:
    """Seconds, all of them. The defaults keep a worker well inside the 600 s after which NCCL gives a training step up."""

    resume_s: float = 60.0  # a restarted sidecar loads its index in seconds; a rescheduled one in under a minute
    tell_s: float = 5.0  # of trouble before a person is told that a shard is waited for; most of it is over sooner
    open_s: float = 2.0  # a new open of a dead sidecar: long enough for a restart under a supervisor, short enough not to be felt
    connect_s: float = 2.0  # it is on this machine: it accepts at once, or it is not there
    silence_s: float = 30.0  # no byte for this long: ask /healthz whether the sidecar still turns
    patience_s: float = 330.0  # silence of a sidecar that turns: it rides out origin trouble for 300 s itself
    direct_silence_s: float = 60.0  # no byte from an origin asked directly
    pause_s: float = 0.05  # first pause between two tries, doubling up to longest_pause_s
    longest_pause_s: float = 1.0  # so that a sidecar that is back is noticed within a second
    jitter_s: float = 0.25  # before a direct opening: the workers of a node lose their sidecar in the same instant


DEFAULT_LIMITS = Limits()
