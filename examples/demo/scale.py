"""The numbers a demo runs with: one place, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Scale"]


@dataclass(frozen=True)
class Scale:
    """What is built and how the trainer behaves. Defaults fit two cores."""

    shards: int = 16
    shard_bytes: int = 24_000_000  # 16 of them: long enough for an epoch of seconds, small enough for any temporary directory
    latency_ms: float = 50.0  # an object store in another region
    rate_mb: float = 20.0  # what one connection to it gives
    step_ms: float = 50.0  # a training step
    batch: int = 48  # about 100 MB/s wanted, where two workers with a connection each get 40
    workers: int = 2
    limit_bytes: int = 2_000_000_000  # of a user's own shards

    def trainer_options(self, through: str) -> list[str]:
        """Arguments of ``demo.train`` for one row."""
        options = ["--through", through, "--workers", str(self.workers), "--batch", str(self.batch)]
        return [*options, "--step-ms", str(self.step_ms)]
