"""The stage that ``fb.video`` makes: which of a sample's members are clips, what becomes of those that cannot be decoded."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.epoch_stage import EpochStage
from forebay_loader.base.notices import warn_node
from forebay_loader.plan.plan_subject import told_epoch
from forebay_loader.video.clip_arguments import ClipArguments
from forebay_loader.video.errors import VideoError, VideoTimeout

__all__ = ["ClipStage", "Handler"]

Handler = Callable[[Exception], bool]
Sample = Dict[str, Any]
CORRUPT = "__corrupt__"


class ClipStage(EpochStage):
    """As ``fb.video`` says. Pickles; nothing is open between two samples."""

    def __init__(self, asked: ClipArguments, epoch: Any, handler: Optional[Handler], replace_corrupt: bool) -> None:
        self.asked = asked
        self.replaces = replace_corrupt
        self._epoch = epoch
        self._handler = handler
        self._passes = 0
        self._began: Dict[int, int] = {}  # by thread: the epoch that its next pass is of

    def __repr__(self) -> str:
        return f"<ClipStage {self.asked.sampling!r}, size {self.asked.size}>"

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_began": {}}

    def begin(self, epoch: int, turn: int) -> None:
        self._began[threading.get_ident()] = epoch

    def __call__(self, *given: Any) -> Any:
        """``(samples)`` as a stage, an iterator of samples; ``(key, data)`` as a decoder, None for what is no clip."""
        if len(given) == 1:
            return self._pass(iter(given[0]))
        return self._decode(*given)

    def wants(self, suffix: str) -> bool:
        """Whether a member of this suffix is a clip."""
        return suffix.rpartition(".")[2].lower() in self.asked.members

    def decoded(self, sample: Mapping[str, Any], epoch: Optional[int] = None) -> Sample:
        """``sample`` with its clips, bytes or ``MemberBytes``, decoded. Without ``epoch`` the one that was told counts.

        Raises ``VideoError`` and what reading raises.
        """
        from forebay_loader.video.clip_sample import decoded_sample  # noqa: PLC0415  # PyAV and numpy

        epoch = self._told() if epoch is None else epoch
        with _counted():
            found = decoded_sample(sample, self.wants, self.asked, epoch)
        if self.replaces:
            found[CORRUPT] = ""
        return found

    def replaced(self, healthy: Mapping[str, Any], bad: Mapping[str, Any], why: Exception, epoch: Optional[int] = None) -> Sample:
        """``healthy`` decoded, in the place of ``bad``, whose key it names."""
        warn_node(f"{why}; another sample stands in its place (replace_corrupt)")
        COUNTS.add("video_replaced")
        return {**self.decoded(healthy, epoch), CORRUPT: str(bad.get("__key__", "?"))}

    def by_number(self, sample: Callable[[int], Sample], number: int, count: int) -> Sample:
        """Sample ``number`` of ``count`` with its clips decoded. Where it cannot be, and ``replaces``, the next that can."""
        try:
            return self.decoded(sample(number))
        except VideoError as error:
            if not self.replaces:
                raise
            why = error
        for other in (*range(number + 1, count), *range(number)):
            try:
                return self.replaced(sample(other), sample(number), why)
            except VideoError as error:
                why = error
        raise why

    def _told(self) -> int:
        return told_epoch(self._epoch) or 0

    def _pass(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """One pass over ``samples``. ``healthy`` is the last that could be decoded, as it came; ``owed`` those before any such."""
        epoch = self._next_epoch()
        healthy: Optional[Sample] = None
        owed: List[Tuple[Sample, Exception]] = []
        for sample in samples:
            try:
                found = self.decoded(sample, epoch)
            except Exception as error:
                if self.replaces and isinstance(error, VideoError):
                    if healthy is None:
                        owed.append((sample, error))
                    else:
                        yield self.replaced(healthy, sample, error, epoch)
                elif self._handler is None:
                    raise
                elif not self._handler(error):
                    return
                continue
            yield found
            healthy = sample
            for bad, why in owed:
                yield self.replaced(healthy, bad, why, epoch)
            owed = []
        if owed:
            raise owed[0][1]  # not one could be decoded: that is no accident of a clip

    def _next_epoch(self) -> int:
        """What was told; else what ``fb.WebDataset`` says; else a count."""
        began = self._began.pop(threading.get_ident(), None)
        told = told_epoch(self._epoch)
        passed, self._passes = self._passes, self._passes + 1
        return told if told is not None else passed if began is None else began

    def _decode(self, key: str, data: Any) -> Any:
        """A decoder's answer for one member: (frames, audio, info), or None."""
        if not self.wants(key):
            return None
        from forebay_loader.video.clip_sample import decoded_member  # noqa: PLC0415  # PyAV and numpy

        with _counted():
            return decoded_member(key, data, self.asked, self._told())


@contextmanager
def _counted() -> Iterator[None]:
    try:
        yield
    except VideoError as error:
        COUNTS.add("video_timeout" if isinstance(error, VideoTimeout) else "video_corrupt")
        raise
