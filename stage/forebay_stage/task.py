"""One task: makes one shard from its inputs and puts it to the destination. Nothing is kept between two tasks.

The same task makes the same bytes, whoever runs it and however often: so it can be run again after any failure, and by two at once. Its
shard lies in a scratch file until it is whole; the destination reads it back and compares.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from forebay_proxy.cli.output import many
from forebay_proxy.wire.commands.sources import parse_source
from forebay_stage.destination import Destination, destination_of
from forebay_stage.errors import SampleFailed, ShardTorn, StageError
from forebay_stage.plan import PIECE_BYTES, Piece
from forebay_stage.shard_writer import ShardWriter
from forebay_stage.source import samples_of, samples_of_piece
from forebay_stage.steps import Sample, Step, applied, step_of

__all__ = ["AssembleTask", "Failure", "Finished", "MapTask", "Task", "index_name", "run_task", "write_mapped"]

_PIECES_AT_ONCE = 16  # a shuffled shard has a piece for each sample: they are asked for together, or each would cost a round trip
_AHEAD_BYTES = _PIECES_AT_ONCE * PIECE_BYTES  # of them at once: a sample may be larger than a piece is else
_MOST_CAUSE = 500  # characters that are kept of what a step raised


@dataclass(frozen=True)
class MapTask:
    """Phase 1: all samples of one shard of SRC through the steps. ``shard`` is as the person wrote it, and may hold a secret.

    More than ``max_failed`` samples that fail end the task.
    """

    output: str
    shard: str = field(repr=False)
    name: str
    etag: str
    reader: str
    maps: tuple[str, ...]
    max_failed: int
    destination: str
    zstd: int | None


@dataclass(frozen=True)
class AssembleTask:
    """Phase 2: pieces of parts, one after the other, are a final shard."""

    output: str
    pieces: tuple[Piece, ...] = field(repr=False)
    destination: str
    zstd: int | None


Task = MapTask | AssembleTask


class Failure(NamedTuple):
    """A sample that a step did not take, or made nonsense of; or all samples ``after`` one, where the shard is torn."""

    key: str
    step: str
    cause: str


@dataclass(frozen=True)
class Finished:
    """A shard that is at the destination, and was compared there. ``source`` and ``etag``: what it was made of, in phase 1."""

    name: str
    samples: int
    bytes: int
    xxh128: str
    source: str = ""
    etag: str = ""
    failed: tuple[Failure, ...] = ()


def run_task(task: Task) -> Finished:
    """Raises ``StageError``."""
    failed: list[Failure] = []
    destination = destination_of(task.destination)
    try:
        with tempfile.TemporaryDirectory(prefix="forebay-stage-") as scratch:
            path = Path(scratch) / "shard"
            with ShardWriter(path, task.zstd) as writer:
                if isinstance(task, MapTask):
                    write_mapped(task, writer, failed)
                else:
                    for sample in _assembled(destination, task.pieces):
                        writer.add(sample)
            written = writer.finished()
            if task.zstd is None:  # readers seek by it, which nothing compressed allows
                destination.put(index_name(task.output), written.index)
            destination.put_file(task.output, path)
    except OSError as error:  # of the scratch file: the destination has errors of its own
        raise StageError(
            f"shard {task.output}: cannot be written to the scratch folder {tempfile.gettempdir()}: {error.strerror or error}",
            next_step="make room there, or name another folder with TMPDIR; the same command then goes on",
        ) from error
    source, etag = (task.name, task.etag) if isinstance(task, MapTask) else ("", "")
    return Finished(task.output, written.samples, written.bytes, written.xxh128, source, etag, tuple(failed))


def index_name(shard: str) -> str:
    """Where the sample index of a shard lies, beside it."""
    return f"{shard}.index"


def write_mapped(task: MapTask, writer: ShardWriter, failed: list[Failure]) -> None:
    """What the steps make of the samples of a shard; those that fail are noted. Raises ``StageError`` where they are too many."""
    source = parse_source(task.shard)
    assert source is not None  # the command line has understood it
    steps = _steps(task.maps)

    def note(error: SampleFailed) -> None:
        failed.append(Failure(error.key, error.step_name, error.cause[:_MOST_CAUSE]))
        if len(failed) > task.max_failed:
            raise StageError(
                f"shard {task.name}: {error}; {many(len(failed), 'sample')} of it failed, and --max-failed is {task.max_failed}",
                next_step=error.step,
            ) from error

    last = ""
    try:
        for sample in samples_of(source, task.etag, task.reader):
            last = sample["__key__"]
            try:
                made = list(applied(steps, sample))  # all of one or nothing: a step that fails later must not leave a part behind
                for one in made:
                    writer.check(one)
            except SampleFailed as error:
                note(error)
                continue
            for one in made:
                writer.add(one)
    except ShardTorn as error:
        failed.append(Failure(f"after {last}" if last else "the first", "read", str(error)[:_MOST_CAUSE]))
        if len(failed) > task.max_failed:
            raise


@cache
def _steps(maps: tuple[str, ...]) -> Sequence[Step]:
    return [step_of(text) for text in maps]


def _assembled(destination: Destination, pieces: Sequence[Piece]) -> Iterator[Sample]:
    waiting: deque[tuple[Piece, Future[bytes]]] = deque()
    coming = iter(pieces)
    upcoming, ahead = next(coming, None), 0
    with ThreadPoolExecutor(_PIECES_AT_ONCE) as pool:
        while True:
            while upcoming and len(waiting) < _PIECES_AT_ONCE and (not waiting or ahead + upcoming.size <= _AHEAD_BYTES):
                waiting.append((upcoming, pool.submit(destination.read, *upcoming)))
                ahead, upcoming = ahead + upcoming.size, next(coming, None)
            if not waiting:
                return
            piece, content = waiting.popleft()
            yield from samples_of_piece(piece.name, content.result())
            ahead -= piece.size
            del content  # before the next are asked for
