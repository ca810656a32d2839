"""What a stage would come to, told from a few shards: they are read and transformed into a scratch folder, and nothing else is written."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forebay_proxy.wire.commands.sources import Source
from forebay_stage.shard_writer import ShardWriter
from forebay_stage.spec import Input, StageSpec
from forebay_stage.task import Failure, MapTask, write_mapped

__all__ = ["Estimate", "dry_run"]


@dataclass(frozen=True)
class Estimate:
    """The figures are of the whole set, told from ``tried`` shards. ``egress``: bytes that its origin sends if none of them is cached."""

    tried: int
    samples: int
    bytes: int
    shards: int
    seconds: float
    egress: int
    failed: tuple[Failure, ...]


def dry_run(sources: Sequence[Source], inputs: Sequence[Input], spec: StageSpec, *, processes: int, reader: str) -> Estimate:
    """Reads the first, the middle and the last shard. Raises ``StageError``."""
    numbers = sorted({0, len(inputs) // 2, len(inputs) - 1})
    failed: list[Failure] = []
    samples = size = 0
    begun = time.monotonic()
    for number in numbers:
        one = inputs[number]
        task = MapTask("dry-run", sources[number].text, one.name, one.etag, reader, spec.maps, sys.maxsize, "", spec.zstd)
        with tempfile.TemporaryDirectory(prefix="forebay-stage-") as scratch:
            with ShardWriter(Path(scratch) / "shard", spec.zstd) as writer:
                write_mapped(task, writer, failed)
            written = writer.finished()
        samples, size = samples + written.samples, size + written.bytes
    seconds = time.monotonic() - begun
    egress = sum(one.length for one in inputs)
    share = egress / max(1, sum(inputs[number].length for number in numbers))  # shards differ in size, and what is in them does less
    all_samples, all_bytes = round(samples * share), round(size * share)
    return Estimate(
        len(numbers), all_samples, all_bytes, _shards(spec, len(inputs), all_samples, all_bytes), seconds * share / processes, egress,
        tuple(failed),
    )  # fmt: skip


def _shards(spec: StageSpec, inputs: int, samples: int, size: int) -> int:
    if spec.bytes_per_shard is not None:
        return -(-size // spec.bytes_per_shard)
    return inputs if spec.samples_per_shard is None else -(-samples // spec.samples_per_shard)
