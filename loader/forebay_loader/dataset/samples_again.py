"""Reads again the samples that a stage held when a state was taken, and puts them through the stages before that one.

Each sample is read when the stage needs it. If its shard has an index, only that sample is read, from the file or by a range request. A
shard without an index is read up to the last sample that is needed. The samples needed from it are kept until then.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional

from forebay_loader.base.epoch_stage import EpochStage
from forebay_loader.base.shown_text import shown_shard
from forebay_loader.dataset.sample_shares import SharedOut
from forebay_loader.dataset.stages import TarSamples, indexed_shard
from forebay_loader.meter.skips.recorded_handler import Place, RecordedHandler
from forebay_loader.meter.skips.skip_pass import SkipPass, making
from forebay_loader.resume.begun_shards import BegunShards, version_of
from forebay_loader.resume.cursor import Cursor, putting_together
from forebay_loader.resume.known_stages import PASSED, kind_of
from forebay_loader.resume.pass_state import refs_of
from forebay_loader.resume.sample_buffer import LOST
from forebay_loader.samples.indexed_shard import IndexedShard

__all__ = ["PassAgain", "ShardsAgain", "ShardsAhead", "StagesAgain"]

MOST_OPEN = 32  # shards; each needs a file descriptor
AHEAD = 24  # shards open or being opened, and not yet taken. A first batch draws from some 20; with eight it took 1.4 times as long
_GONE = "bring that shard back as it was, or let resume='replay' run the epoch again"


class _Entered(NamedTuple):
    """An open shard: with its index, or as a stream from its start."""

    shard: Optional[IndexedShard]
    opened: dict[str, Any]

    def close(self) -> None:
        if self.shard is not None:
            self.shard.close()
        elif hasattr(self.opened["stream"], "close"):
            self.opened["stream"].close()


def _entered(begun: BegunShards, tars: TarSamples, item: int) -> _Entered:
    """Open the shard of ``item``. May run in a thread of its own."""
    url, opening = begun.url(item), tars.opening
    shard = indexed_shard(url, opening.limits, begun.version(item)) if not tars.selects else None
    return _Entered(shard, {} if shard is not None else opening.open({"url": url}, begun.version(item)))


class ShardsAhead:
    """Calls ``enter`` for each of ``items`` ahead of time, in threads, since each call waits for the sidecar.

    ``items`` are in about the order in which they will be taken. A thread lives only while it opens its shard.
    """

    def __init__(self, items: Iterable[int], enter: Callable[[int], _Entered]) -> None:
        self._left = iter(items)
        self._seen: set[int] = set()
        self._enter = enter
        self._ready: dict[int, Future[_Entered]] = {}
        self._fill()

    def __repr__(self) -> str:
        return f"<ShardsAhead {len(self._ready)} of {AHEAD}>"

    def take(self, item: int) -> _Entered:
        """Return what ``enter`` gives for ``item``, now or ahead of time. Raises what it raises."""
        future = self._ready.pop(item, None)
        self._fill()
        return self._enter(item) if future is None else future.result()

    def close(self) -> None:
        """Close the shards that nobody has taken."""
        ready, self._ready, self._left = self._ready, {}, iter(())
        for future in ready.values():
            future.add_done_callback(_let_go)

    def _fill(self) -> None:
        for item in self._left if len(self._ready) < AHEAD else ():
            if item not in self._seen:
                self._seen.add(item)
                future: Future[_Entered] = Future()
                self._ready[item] = future
                threading.Thread(target=_enter_into, args=(future, self._enter, item), name=f"forebay-again-{item}", daemon=True).start()
            if len(self._ready) >= AHEAD:
                return


def _enter_into(future: Future[_Entered], enter: Callable[[int], _Entered], item: int) -> None:
    try:
        future.set_result(enter(item))
    except BaseException as error:
        future.set_exception(error)


def _let_go(future: Future[_Entered]) -> None:
    with suppress(Exception):  # nobody takes it, so its error does not matter
        future.result().close()


class ShardsAgain:
    """Samples, as ``tars`` reads them, of the shards that ``cursor``'s pass had begun when its state was taken."""

    def __init__(self, cursor: Cursor, tars: TarSamples, skips: SkipPass) -> None:
        self._begun = cursor.shards
        self._tars = tars
        self._handler = None if tars.opening.handler is None else RecordedHandler(tars.opening.handler, skips)
        self.skips = skips
        self._open: OrderedDict[int, IndexedShard] = OrderedDict()
        self._without: set[int] = set()  # items whose shards have no index
        self._opened: dict[int, dict[str, Any]] = {}  # item without an index -> its open stream, not read yet
        self._ahead: Optional[ShardsAhead] = None
        self._kept: dict[tuple[int, int], Any] = {}
        self._wanted: dict[int, dict[int, int]] = {}  # item -> number of a sample -> how often it is wanted
        for buffer in () if cursor.began is None else cursor.began.buffers:
            for ordinal in refs_of(buffer):
                item, number = cursor.shards.place(ordinal)
                numbers = self._wanted.setdefault(item, {})
                numbers[number] = numbers.get(number, 0) + 1

    def __repr__(self) -> str:
        return f"<ShardsAgain {sum(map(len, self._wanted.values()))} samples of {len(self._wanted)} shards>"

    def expect(self, ordinals: Iterable[int]) -> None:
        """Open the shards of ``ordinals`` ahead. The caller will ask for them in about this order."""
        if self._ahead is None:
            items = (place(ordinal)[0] for place in (self._begun.place,) for ordinal in ordinals)  # the generator must not refer to self
            self._ahead = ShardsAhead(items, partial(_entered, self._begun, self._tars))
            weakref.finalize(self, self._ahead.close).atexit = False

    def sample(self, ordinal: int) -> Any:
        """Return the sample of ``ordinal``, or ``LOST`` if it cannot be read and the handler skips that.

        Raises the errors of reading, and ``ValueError`` if the shard has changed since the state.
        """
        item, number = self._begun.place(ordinal)
        try:
            found = self._found(item, number)
        except ValueError:
            raise
        except Exception as error:
            if self._handler is None or not self._handler.at(error, Place("read", "file", self._begun.url(item), str(number))):
                raise
            found = LOST
        self._count_off(item, number)
        return found

    def _found(self, item: int, number: int) -> Any:
        if (item, number) in self._kept:
            return self._kept[item, number]
        shard = self._indexed(item)
        if shard is None:
            self._read(item)
            return self._kept[item, number]
        if number >= len(shard):
            raise self._short(item, number, len(shard))
        return shard[number]

    def _indexed(self, item: int) -> Optional[IndexedShard]:
        found = self._open.get(item)
        if found is not None:
            self._open.move_to_end(item)
            return found
        if item in self._without:
            return None
        entered = _entered(self._begun, self._tars, item) if self._ahead is None else self._ahead.take(item)
        found = entered.shard
        if found is None:
            self._without.add(item)
            self._opened[item] = entered.opened
            return None
        try:
            self._begun.check_version(item, found.etag)
        except BaseException:
            found.close()
            raise
        self._open[item] = found
        if len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)[1].close()
        return found

    def _read(self, item: int) -> None:
        """Keep all needed samples of a shard without an index."""
        shards, wanted = self._begun, self._wanted.get(item, {})
        opened = self._opened.pop(item, None) or self._tars.opening.open({"url": shards.url(item)}, shards.version(item))
        try:
            shards.check_version(item, version_of(opened["stream"]))
        except ValueError:
            opened["stream"].close()
            raise
        last, count = max(wanted), 0
        samples = self._tars.read([opened], self.skips)
        for number, sample in enumerate(samples):
            count = number + 1
            if number in wanted:
                self._kept[item, number] = sample
            if number == last:
                break
        del samples  # closes the shard now
        opened["stream"].close()
        if count <= last:
            if self._handler is None:
                raise self._short(item, last, count)
            self._kept.update({(item, number): LOST for number in wanted if number >= count})  # the handler skipped the error

    def _short(self, item: int, number: int, count: int) -> ValueError:
        return ValueError(
            f"shard {shown_shard(self._begun.url(item))}: its sample {number} was in a buffer when the state was taken, and it has "
            f"{count} now: {_GONE}"
        )

    def _count_off(self, item: int, number: int) -> None:
        numbers = self._wanted.get(item, {})
        numbers[number] = numbers.get(number, 1) - 1
        if numbers[number] < 1:
            del numbers[number]
            self._kept.pop((item, number), None)
        if not numbers:
            self._wanted.pop(item, None)
            shard = self._open.pop(item, None)
            if shard is not None:
                shard.close()


class StagesAgain:
    """Samples read again, after the stages that come before the one that held them. ``put`` builds these stages over an iterator."""

    def __init__(self, shards: ShardsAgain, put: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self._shards = shards
        self._put = put
        self._waiting: list[Any] = []
        self._made: Optional[Iterator[Any]] = None

    def __repr__(self) -> str:
        return f"<StagesAgain behind {self._shards!r}>"

    def expect(self, ordinals: Iterable[int]) -> None:
        self._shards.expect(ordinals)

    def one(self, ordinal: int) -> Any:
        """Return the output of the stages for the sample of ``ordinal``.

        Returns ``LOST`` and raises errors as ``ShardsAgain.sample``. Returns ``LOST`` too if a stage's handler skips the sample. Raises
        ``ValueError`` if a stage leaves the sample out by itself now.
        """
        sample = self._shards.sample(ordinal)
        if sample is LOST:
            return LOST
        if self._made is None:
            self._made = self._put(self._feed())
        self._waiting.append(sample)
        before = self._shards.skips.passed_over()
        try:
            return next(self._made)
        except StopIteration:  # a handler ended the stages
            self._made = None
            return LOST
        except _LeftOut:
            if self._shards.skips.passed_over() > before:
                self._made = None
                return LOST
            self._made, name = None, sample.get("__key__", "?") if isinstance(sample, dict) else "?"
            raise ValueError(
                f"sample {name} was in a buffer when the state was taken, and a stage before it leaves it out now: what .map and .select "
                "are given must make the same of a sample each time; resume='replay' runs the epoch again"
            ) from None

    def batch(self, ordinals: Iterable[int]) -> Any:
        """Return the one batch that was made of the samples of ``ordinals``."""
        samples = [sample for sample in map(self._shards.sample, ordinals) if sample is not LOST]
        made = list(self._put(iter(samples)))
        if len(made) != 1:
            raise ValueError(
                f"{len(samples)} samples were one batch when the state was taken, and are {len(made)} now: what .map and .select are given "
                "must make the same of a sample each time; resume='replay' runs the epoch again"
            )
        return made[0]

    def _feed(self) -> Iterator[Any]:
        while True:
            if not self._waiting:
                raise _LeftOut
            yield self._waiting.pop()


class PassAgain:
    """Reads again the samples that stages held in the pass that ``cursor`` resumes. ``told`` are the arguments of ``begin``."""

    def __init__(self, dataset: Any, cursor: Cursor, skips: SkipPass, told: tuple[int, int, Optional[int], int]) -> None:
        self._dataset = weakref.ref(dataset)  # weak: the data set's iteration holds this object
        self._pipeline = list(dataset.pipeline)
        self._skips = skips
        self._told = told
        reading = [at for at, stage in enumerate(dataset.pipeline) if getattr(stage, "reads_shards", False)]
        self._behind = reading[-1] + 1
        tars = next((tars for tars in map(_tars, dataset.pipeline) if tars is not None), None)
        self._shards = ShardsAgain(cursor, tars, skips) if tars is not None and cursor.began is not None else None

    def __repr__(self) -> str:
        return f"<PassAgain {self._shards!r}>"

    def before(self, at: int) -> Optional[StagesAgain]:
        """The input of stage ``at`` of the pipeline, read again; None if the pass was not resumed."""
        if self._shards is None or at < self._behind:
            return None
        return StagesAgain(self._shards, partial(self._put, self._pipeline[self._behind : at]))

    def _put(self, stages: list[Any], samples: Iterator[Any]) -> Iterator[Any]:
        dataset, cursor = self._dataset(), Cursor()
        assert dataset is not None
        cursor.reads = True
        with making(self._skips), putting_together(cursor):
            for stage in stages:
                if kind_of(stage) in PASSED:
                    continue
                if isinstance(stage, EpochStage):
                    stage.begin(*self._told)
                samples = dataset.invoke(stage, samples)
        return samples


def _tars(stage: Any) -> Optional[TarSamples]:
    if isinstance(stage, TarSamples):
        return stage
    return stage.stages[2] if isinstance(stage, SharedOut) else None


class _LeftOut(BaseException):
    """A stage asks for another sample: it yielded none for the last one. A ``BaseException``, so that no stage's handler catches it."""
