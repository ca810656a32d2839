"""The stage that ``fb.video`` makes: which of a sample's members are clips, what becomes of those that cannot be decoded."""

from __future__ import annotations

import os
import threading
import uuid
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.epoch_stage import EpochDecoder, EpochStage
from forebay_loader.base.notices import notice_once, warn_node
from forebay_loader.identity.world import World
from forebay_loader.meter.skips.recorded_handler import Handler, NumberedSkips, Place, RecordedHandler
from forebay_loader.meter.skips.skip_pass import current, lone_pass
from forebay_loader.plan.epochs import Epochs
from forebay_loader.plan.plan_client import told_epoch
from forebay_loader.samples.open_sample import reraise
from forebay_loader.samples.shard_name import drawn_as
from forebay_loader.videos.clip_field import clip_named_in, keyed
from forebay_loader.videos.clip_pass import ClipArguments, ClipPass
from forebay_loader.videos.errors import NotScanned, VideoError, VideoTimeout
from forebay_proxy.wire.protocol.version import VERSION

__all__ = ["ClipStage"]

Sample = Dict[str, Any]
Began = Tuple[int, int, Optional[int], int]
CORRUPT = "__corrupt__"
_TELL = "fb.video(…, epoch=…) says it: a number, or an object with a value that workers see, such as multiprocessing.Value('i')"

_AGAIN = f"If the pipeline draws or repeats without end, nothing tells the table where an epoch ends: {_TELL}"


class ClipStage(EpochStage, EpochDecoder):
    """As ``fb.video`` says. Pickles; nothing is open between two samples."""

    def __init__(self, asked: ClipArguments, epoch: Any, handler: Optional[Handler], replace_corrupt: bool) -> None:
        self.asked = asked
        self.replaces = replace_corrupt
        self._epochs = Epochs(epoch)  # counts for pipelines that say nothing, over the workers of a DataLoader
        self._world = World()
        self.handler = handler
        self._numbered = NumberedSkips()
        self._began: Dict[int, Began] = {}  # by thread: what is known of its next pass

    def __repr__(self) -> str:
        return f"<ClipStage {self.asked.sampling!r}, size {self.asked.size}>"

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_world": self._world.resolved(), "_began": {}}

    @property
    def state_kind(self) -> str:
        """What takes the place of a clip that cannot be decoded depends on those before it, and of these no state tells."""
        return "" if self.replaces else "one"

    @property
    def draws(self) -> bool:
        """Whether the frames of a clip differ by epoch."""
        sampling = self.asked.sampling
        return sampling is not None and bool(getattr(sampling, "phased", False) or getattr(sampling, "draws", True))

    def memo_print(self, of: Callable[[Any], Any]) -> Any:
        """What frames and sound depend on, for ``fb.memo``: how fast they are decoded, and what becomes of bad clips, does not count."""
        import av  # noqa: PLC0415  # for those who decode

        asked, sampling = self.asked, self.asked.sampling
        spelled = repr(sampling) if callable(getattr(sampling, "at", None)) else of(sampling)
        told = [spelled, of(asked.size), of(asked.audio), sorted(asked.members), asked.as_torchvision, asked.seed if self.draws else None]
        if asked.frames is not None and asked.frames.quality is not None:
            told.append(f"JPEG {asked.frames.quality}")
        versions = [f"forebay {VERSION}", f"av {av.__version__}"]
        told += [asked.source] if asked.source else []
        return [*told, None if asked.metadata is None else file_stamp(asked.metadata.path), *versions]

    def memo_version(self, sample: Any) -> str:
        """For ``fb.memo``: the version of the clip that a field of ``sample`` names, which the name does not tell. Asked of its file or
        origin each time; of one that cannot be asked nothing that was kept is found."""
        if not self.asked.source:
            return ""
        from forebay_loader.videos.clip_sample import named_source  # noqa: PLC0415  # PyAV and numpy

        try:
            return named_source(clip_named_in(sample, self.asked.source), self.asked, None).version()
        except (OSError, ValueError):
            return uuid.uuid4().hex

    def by_field(self, field: str) -> ClipStage:
        """The same, whose clips the field of that name names, unless it has one."""
        return ClipStage(replace(self.asked, source=self.asked.source or field), self._epochs.told, self.handler, self.replaces)

    def begin(self, epoch: int, turn: int, phase: Optional[int] = None, place: int = 0) -> None:
        self._began[threading.get_ident()] = epoch, turn, phase, place

    def of_pass(
        self, epoch: int, turn: int, phase: Optional[int], place: int = 0, sample: Optional[Callable[[], Mapping[str, Any]]] = None
    ) -> Callable[[str, Any], Any]:
        return partial(self._decode, of=self._pass_of((epoch, turn, phase, place)), sample=sample)

    def __call__(self, *given: Any) -> Any:
        """``(samples)`` as a stage, an iterator of samples; ``(key, data)`` as a decoder, None for what is no clip."""
        if len(given) == 1:
            handler = RecordedHandler(self.handler or reraise, current() or lone_pass())
            of = self._pass_of(self._began.pop(threading.get_ident(), None))
            return handler.counting(self._samples(iter(given[0]), of, handler))
        return self._decode(*given)

    def wants(self, suffix: str) -> bool:
        """Whether a member of this suffix is a clip."""
        return suffix.rpartition(".")[2].lower() in self.asked.members

    def decoded(self, sample: Mapping[str, Any], of: Optional[ClipPass] = None, visit: Any = None) -> Sample:
        """``sample`` with its clips, bytes or ``MemberBytes``, decoded, in the pass ``of``, else in the epoch that ``epoch=`` tells; as at
        ``visit``, else as at one more.

        Raises ``VideoError`` and what reading raises, ``ValueError`` where nothing tells the epoch and the sampler needs it.
        """
        from forebay_loader.videos.clip_sample import decoded_sample  # noqa: PLC0415  # PyAV and numpy

        visit = visit or (of or self._pass_told()).visit(drawn_as(sample))
        if of is not None and of.counted and any(visit.again[1:]) and getattr(self.asked.sampling, "phased", False):
            notice_once(
                "clip-again", f"{sample.get('__key__')!r} came again within one epoch, {visit.phase}, of {self.asked.sampling!r}. {_AGAIN}"
            )
        with _counted():
            found = decoded_sample(sample, self.wants, self.asked, visit)
        if self.replaces:
            found[CORRUPT] = ""
        return found

    def replaced(self, healthy: Mapping[str, Any], bad: str, why: str, of: Optional[ClipPass] = None, visit: Any = None) -> Sample:
        """``healthy`` decoded, in the place of the sample whose key is ``bad``, which it names. At ``visit`` it could be decoded: what is
        drawn now may be damaged."""
        warn_node(f"{why}; another sample stands in its place (replace_corrupt)")
        COUNTS.add("video_replaced")
        try:
            found = self.decoded(healthy, of)
        except VideoError:
            if visit is None:
                raise
            found = self.decoded(healthy, of, visit)
        return {**found, CORRUPT: bad}

    def by_number(self, sample: Callable[[int], Sample], number: int, count: int) -> Sample:
        """Sample ``number`` of ``count`` with its clips decoded. Where it cannot be, and ``replaces``, the next that can."""
        self._numbered.asked()
        wanted = sample(number)
        try:
            return self.decoded(wanted)
        except VideoError as error:
            if not self._replaces(error):
                raise
            first = why = error
        for other in (*range(number + 1, count), *range(number)):
            try:
                found = self.replaced(sample(other), _key(wanted), str(why))
            except VideoError as error:
                why = error
                continue
            self._numbered.replaced(first, Place("decode", "sample", wanted.get("__url__", ""), _key(wanted), "video"))
            return found
        raise why

    def _replaces(self, error: Exception) -> bool:
        """A clip that nothing is known of is no bad one: another would take its place for ever."""
        return self.replaces and isinstance(error, VideoError) and not isinstance(error, NotScanned)

    def _pass_of(self, began: Optional[Began]) -> ClipPass:
        """A pass that ``fb.WebDataset`` began; else the next that a pipeline makes, which is an epoch. What ``epoch=`` tells comes first.

        A pipeline that is not ours does not say how its shards are shared out, and its workers may come to one clip: there each draws for
        itself. Raises ``ValueError`` for a table of epochs where nothing says which one it is.
        """
        if self.asked.frames is not None:
            self.asked.frames.ready()  # a folder that cannot be used is no fault of a sample's, of which a handler is asked
        if began is None:
            place = self._world.resolved().place()
            return ClipPass(self._epochs.begin(), place=place, counted=told_epoch(self._epochs.told) is None)
        epoch, turn, phase, place = began
        told = told_epoch(self._epochs.told)
        if told is None and phase is None and getattr(self.asked.sampling, "phased", False):
            raise ValueError(
                f"{self.asked.sampling!r} is a table of epochs, and of a data set that is read without end nothing says where one ends: "
                f".with_epoch(n) or .repeat(n) does, or {_TELL}"
            )
        return ClipPass(epoch, turn, phase, place=place) if told is None else ClipPass(told, turn, place=place)

    def _pass_told(self) -> ClipPass:
        """Where nobody says which pass it is: by number, and as a decoder of a pipeline that is not ``fb.WebDataset``."""
        told, sampling = told_epoch(self._epochs.told), self.asked.sampling
        if told is None and sampling is not None and (getattr(sampling, "phased", False) or getattr(sampling, "draws", True)):
            raise ValueError(
                f"frames by {sampling!r} differ by epoch, and neither samples by number nor a decoder outside fb.WebDataset know theirs: "
                f"{_TELL}. In a wds.DataPipeline let it be a stage of its own, which counts epochs"
            )
        return ClipPass(told or 0)

    def _samples(self, samples: Iterator[Sample], of: ClipPass, handler: RecordedHandler) -> Iterator[Sample]:
        """One pass over ``samples``. ``healthy`` is the last that could be decoded, as it came; ``owed`` those before any such: only their
        keys, for there may be many, and a clip is large. So of their errors, which hold them, the first alone is kept."""
        healthy: Optional[Tuple[Sample, Any]] = None  # with its visit
        owed: List[Tuple[str, str]] = []
        first: Optional[Exception] = None
        for sample in samples:
            try:
                sample = keyed(sample, self.asked.source) if self.asked.source else sample  # noqa: PLW2901
                visit = of.visit(drawn_as(sample))
                found = self.decoded(sample, of, visit)
            except Exception as error:
                place = Place("decode", "sample", sample.get("__url__", ""), _key(sample), "video")
                if self._replaces(error):
                    handler.note(error, place, then="replaced")
                    if healthy is None:
                        owed.append((_key(sample), str(error)))
                        first = first or error
                    else:
                        yield self.replaced(healthy[0], _key(sample), str(error), of, healthy[1])
                elif self.handler is None:
                    raise
                elif not handler.at(error, place):
                    return
                continue
            yield found
            healthy = sample, visit
            for bad, why in owed:
                yield self.replaced(sample, bad, why, of, visit)
            owed, first = [], None
        if owed and first is not None:
            raise first  # not one could be decoded: that is no accident of a clip

    def _decode(self, key: str, data: Any, of: Optional[ClipPass] = None, sample: Optional[Callable[[], Mapping[str, Any]]] = None) -> Any:
        """A decoder's answer for one member of what ``sample`` gives: (frames, audio, info), or None.

        Raises ``ValueError`` where a scan is to be asked and nothing tells of which sample the member is.
        """
        if self.asked.source:
            raise ValueError("source= names a field of a sample, and a decoder gets one member: let fb.video(…) be a stage of its own")
        if not self.wants(key):
            return None
        if self.asked.metadata is not None and sample is None:
            raise ValueError(
                "metadata= knows clips by shard and key, and a decoder outside fb.WebDataset is given neither: in a wds.DataPipeline or a "
                "wds.WebDataset let fb.video(…) be a stage of its own"
            )
        from forebay_loader.videos.clip_sample import decoded_member  # noqa: PLC0415  # PyAV and numpy

        with _counted():
            return decoded_member(key, data, self.asked, of or self._pass_told(), sample() if sample is not None else {})


def file_stamp(path: str) -> Tuple[str, int, int]:
    """Another one when the file is written anew; zeros without it."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return path, 0, 0
    return path, found.st_size, found.st_mtime_ns


def _key(sample: Mapping[str, Any]) -> str:
    return str(sample.get("__key__", "?"))


@contextmanager
def _counted() -> Iterator[None]:
    try:
        yield
    except NotScanned:
        raise  # what lacks is a scan; the clip is as good as any
    except VideoError as error:
        COUNTS.add("video_timeout" if isinstance(error, VideoTimeout) else "video_corrupt")
        raise
