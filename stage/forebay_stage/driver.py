"""The driver: knows what is done, gives the rest to an engine, and writes down what came back. It alone writes below ``_stage/``.

A finished shard is written down only after its bytes were compared at the destination, and ``sizes.json`` comes when all shards are there.
So a kill at any moment leaves either a shard that is written down, or one that will be made again with the same bytes.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from forebay_proxy.cli.output import many
from forebay_proxy.wire.commands.sources import Source
from forebay_proxy.wire.tar.sample_index import decode
from forebay_stage.destination import Destination
from forebay_stage.engine_local import Engine
from forebay_stage.errors import DestinationFailed, StageBusy, StageError, StageRefused
from forebay_stage.plan import Part, estimated_outputs, outputs, sample_ends
from forebay_stage.spec import Input, StageSpec, check_same, document
from forebay_stage.stage_lock import LOCK, RENEW_S, SPEC
from forebay_stage.task import AssembleTask, Failure, Finished, MapTask, index_name

__all__ = ["Progress", "Stage", "Sums"]

_AT_ONCE = 16
_OWN, _DONE, _PARTS = "_stage/", "_stage/done/", "_stage/parts/"
_FAILED, _SIZES, _CHECKSUMS = "_stage/failed.jsonl", "sizes.json", "checksums.json"
_OUTPUT = re.compile(r"\d{5,}\.tar(\.zst)?(\.index)?")


@dataclass
class Sums:
    """Of a phase, or of the whole: ``failed`` counts samples."""

    shards: int = 0
    samples: int = 0
    bytes: int = 0
    failed: int = 0

    def add(self, one: Finished) -> None:
        self.shards += 1
        self.samples += one.samples
        self.bytes += one.bytes
        self.failed += len(one.failed)


# Hears after each shard how far a phase is: its name, what is done, what of that was there already, how many shards it has in all.
Progress = Callable[[str, Sums, Sums, int], None]


class Stage:
    """One output. ``where`` is what the destination is called, ``sources`` and ``inputs`` the shards of SRC, ``reader`` who reads them.

    ``ahead`` is told which shards will be read, in their order.
    """

    def __init__(
        self,
        spec: StageSpec,
        sources: Sequence[Source],
        inputs: Sequence[Input],
        destination: Destination,
        where: str,
        engine: Engine,
        *,
        max_failed: int,
        reader: str,
        progress: Progress,
        ahead: Callable[[Sequence[Source]], object] = lambda _: None,
    ) -> None:
        self._spec = spec
        self._sources, self._inputs = sources, inputs
        self._destination = destination
        self._where = where
        self._engine = engine
        self._max_failed = max_failed
        self._reader = reader
        self._progress = progress
        self._ahead = ahead
        self._failed: dict[str, tuple[Failure, ...]] = {}  # by the shard of SRC
        self._lost: StageBusy | None = None  # the lock

    def run(self) -> Sums:
        """Make what is missing. Raises ``StageError``; the same again goes on then. ``StageRefused``, ``StageBusy``: nothing was done."""
        with self._locked():
            self._claim()
            done = self._recorded()
            if (finals := self._complete(done)) is None:
                finals = self._make(done)
                self._publish(finals)
            for name in list(self._destination.names(_PARTS)):
                self._destination.delete(name)
            failed = (self._destination.get(_FAILED) or b"").count(b"\n")
        sums = Sums()
        for one in finals:
            sums.add(one)
        sums.failed = failed
        return sums

    def _complete(self, done: Mapping[str, Finished]) -> list[Finished] | None:
        """The output, if all of it is there: then parts may be gone already."""
        content = self._destination.get(_SIZES)
        if content is None:
            return None
        names: dict[str, int] = json.loads(content)
        if names.keys() <= done.keys():
            return sorted((done[name] for name in names), key=_order)
        self._destination.delete(_SIZES)  # a shard has gone since
        return None

    def _make(self, done: Mapping[str, Finished]) -> list[Finished]:
        tasks = list(self._map_tasks())
        self._ahead([source for source, task in zip(self._sources, tasks, strict=True) if task.output not in done])
        mapped = self._phase("map", tasks, len(tasks), done)
        if not self._spec.reshards:
            return mapped
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            parts = list(pool.map(self._part, (one.name for one in mapped)))
        assembly = (
            AssembleTask(self._spec.shard_name(number), tuple(pieces), self._where, self._spec.zstd)
            for number, pieces in enumerate(outputs(parts, self._spec))
        )
        return self._phase("assemble", assembly, estimated_outputs(parts, self._spec), done)

    # The destination is ours

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock, ended = self._destination.lock(), threading.Event()

        def renew() -> None:
            while not ended.wait(RENEW_S):
                try:
                    lock.renew()
                except StageBusy as error:
                    self._lost = error
                    return
                except StageError:
                    continue  # the storage may answer the next time; if it does not, what is put there fails too

        lock.take()
        renewing = threading.Thread(target=renew, name="forebay-stage-lock", daemon=True)
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join()
            with suppress(DestinationFailed):  # it expires by itself; what the stage ended of is what a person must hear
                lock.release()

    def _claim(self) -> None:
        """Begin here, or go on with what the same command began."""
        own, found = document(self._spec, self._inputs), self._destination.get(SPEC)
        if found is not None:
            check_same(found, own, self._where)
            self._check_names(lambda name: _OUTPUT.fullmatch(name) is not None)
            return
        if other := next((name for name in self._destination.names() if name != LOCK), ""):
            raise StageRefused(
                f"{self._where} holds other data, as {other}, and no stage began it",
                next_step="name a DST that is empty, or a new prefix in it",
            )
        self._destination.put(SPEC, own)

    def _check_names(self, is_ours: Callable[[str], bool]) -> None:
        """Raises ``StageRefused`` for a name at the destination that this stage does not write."""
        for name in self._destination.names():
            if not (name.startswith(_OWN) or name in (_SIZES, _CHECKSUMS) or is_ours(name)):
                raise StageRefused(
                    f"{self._where} holds {name}, which this stage did not write",
                    next_step="move it away: a reader would take it for a part of the set; then run the same command again",
                )

    # What is done

    def _recorded(self) -> dict[str, Finished]:
        """What is written down as finished, and lies at the destination with that size."""
        names = list(self._destination.names(_DONE))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = pool.map(self._read_record, names)
            return {one.name: one for one in found if one is not None}

    def _read_record(self, name: str) -> Finished | None:
        content = self._destination.get(name)
        try:
            table: dict[str, Any] = json.loads(content or b"null")
            failed = tuple(Failure(**one) for one in table.pop("failed"))
            record = Finished(**table, failed=failed)
        except (ValueError, TypeError, AttributeError, KeyError):
            return None  # a file of ours that was cut: its shard is made again
        return record if self._destination.size(record.name) == record.bytes else None

    def _record(self, one: Finished) -> None:
        table = asdict(one) | {"failed": [failure._asdict() for failure in one.failed]}
        name = one.name.removeprefix(_PARTS).partition(".")[0]
        kind = "part-" if one.name.startswith(_PARTS) else ""
        self._destination.put(f"{_DONE}{kind}{name}.json", json.dumps(table).encode())

    # The work

    def _map_tasks(self) -> Iterator[MapTask]:
        spec, phases = self._spec, self._spec.reshards
        for number, (source, one) in enumerate(zip(self._sources, self._inputs, strict=True)):
            yield MapTask(
                output=f"{_PARTS}{number:05d}.tar" if phases else spec.shard_name(number),
                shard=source.text, name=one.name, etag=one.etag, reader=self._reader, maps=spec.maps, max_failed=self._max_failed,
                destination=self._where, zstd=None if phases else spec.zstd,
            )  # fmt: skip

    def _part(self, name: str) -> Part:
        content = self._destination.get(index_name(name))
        if content is None:
            raise StageError(
                f"{index_name(name)}: is gone from {self._where}", next_step=f"delete {name} there, and run the same command again"
            )
        return Part(name, sample_ends(decode(content)))

    def _phase(self, phase: str, tasks: Iterable[MapTask | AssembleTask], count: int, done: Mapping[str, Finished]) -> list[Finished]:
        """What came of ``tasks``, in their order; those that are done are not given to the engine."""
        found: dict[str, Finished] = {}
        sums, before = Sums(), Sums()

        def missing() -> Iterator[MapTask | AssembleTask]:
            for task in tasks:
                if (one := done.get(task.output)) is None:
                    yield task
                    continue
                found[one.name] = one
                sums.add(one)
                before.add(one)
                self._count_failures(one)

        with closing(self._engine.run(missing())) as coming:
            for one in coming:
                if self._lost is not None:
                    raise self._lost
                self._record(one)
                found[one.name] = one
                sums.add(one)
                self._count_failures(one)
                self._progress(phase, sums, before, max(count, sums.shards))
        return sorted(found.values(), key=_order)

    def _count_failures(self, one: Finished) -> None:
        if not one.source:
            return
        self._failed[one.source] = one.failed
        if (count := sum(map(len, self._failed.values()))) > self._max_failed:
            self._write_failures()
            last = one.failed[-1]
            raise StageError(
                f"{count} samples failed, and --max-failed is {self._max_failed}; last in shard {one.source}: sample {last.key}: "
                f"step {last.step}: {last.cause}",
                next_step=f"{_FAILED} at {self._where} lists them: correct the step, or allow more; the same command goes on",
            )

    # The end

    def _publish(self, finals: Sequence[Finished]) -> None:
        if self._lost is not None:
            raise self._lost
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            sizes = pool.map(self._destination.size, (one.name for one in finals))
            lost = [one.name for one, size in zip(finals, sizes, strict=True) if size != one.bytes]
        if lost:
            raise StageError(
                f"{many(len(lost), 'finished shard')} of {len(finals)}, as {lost[0]}, cannot be found at {self._where}, or changed there",
                next_step="see what else writes there, and run the same command again: it makes them once more",
            )
        ours = {name for one in finals for name in (one.name, index_name(one.name))}
        self._check_names(ours.__contains__)
        sums = {one.name: {"bytes": one.bytes, "xxh3_128": one.xxh128} for one in finals}
        self._write_failures()
        self._destination.put(_CHECKSUMS, _json(sums))
        self._destination.put(_SIZES, _json({one.name: one.samples for one in finals}))

    def _write_failures(self) -> None:
        rows = [{"shard": source, **one._asdict()} for source, failed in sorted(self._failed.items()) for one in failed]
        self._destination.put(_FAILED, b"".join(json.dumps(row).encode() + b"\n" for row in rows))


def _order(one: Finished) -> tuple[int, str]:
    """By number: 99999 comes before 100000."""
    return len(one.name), one.name


def _json(table: Mapping[str, Any]) -> bytes:
    return json.dumps(table, indent=0).encode() + b"\n"
