"""``fb.video``: the clips of samples as arrays, as a stage of a pipeline, as a decoder for ``.decode(…)``, and for random access.

Neither PyAV nor numpy is imported before a clip is decoded: whoever imports ``forebay_loader`` may have none.
"""

from __future__ import annotations

import importlib.util
import os
from math import inf
from typing import Any, FrozenSet, Iterable, Optional, Union

from forebay_loader.base.argument_types import check_epoch, whole
from forebay_loader.meter.skips.recorded_handler import Handler
from forebay_loader.videos.clip_pass import ClipArguments
from forebay_loader.videos.clip_stage import ClipStage
from forebay_loader.videos.decode.frame_size import Size, check_size

__all__ = ["video"]

SUFFIXES = ("mp4", "webm", "mkv", "mov", "m4v", "avi", "mpg", "mpeg", "ogv", "wmv", "ts")
MOST_HZ = 1 << 20
MOST_THREADS = 256  # of one decoder; FFmpeg asks for memory for each before it looks whether they are of use


def video(
    sampling: Any = None,
    size: Size = None,
    audio: Union[bool, int] = False,
    *,
    members: Union[str, Iterable[str]] = SUFFIXES,
    source: Optional[str] = None,
    seed: int = 0,
    epoch: Any = None,
    threads: int = 1,
    time_limit_s: Optional[float] = 60.0,
    metadata: Union[str, "os.PathLike[str]", None] = None,
    handler: Optional[Handler] = None,
    replace_corrupt: bool = False,
) -> ClipStage:
    """Clips as arrays: of each the frames that ``sampling`` chooses, read and decoded from memory or by ranges, and no others.

    Example::

        dataset = fb.WebDataset(urls).compose(fb.video("uniform(8)", size=224, audio=16_000)).to_tuple("frames", "audio", "json")
        dataset = fb.WebDataset(urls).decode(fb.video("fps(4, 16)")).to_tuple("mp4", "json")   # "mp4" is (frames, audio, info)
        clips = fb.IndexedShards(urls, video=fb.video("clip(0, 16, 2)", size=(224, 224)))      # by number; cold shards by ranges

    As a stage it takes the member's bytes out of each sample and puts in ``frames``, T x H x W x 3 uint8 (RGB); ``mask``, T bool, False
    where a frame only fills its place; ``video``, the clip's ``ClipInfo``; and with ``audio`` ``audio``, channels x samples float32 from
    the begin of the first chosen frame to the end of the last, and ``audio_rate_hz``, its samples a second, 0 of a clip without sound.
    The keys of a member ``left.mp4`` begin with ``left.``. Samples without such a member pass; of a sample whose arrays would take the
    place of another member's (``a.mp4`` and ``a.webm``) it raises ``ValueError``.

    As a decoder it gives ``(frames, audio, info)``, as ``wds.torch_video`` did, in numpy: ``info`` has ``video_fps``, ``audio_fps`` where
    there is sound, ``mask`` and ``video``. Only ``fb.WebDataset`` tells a decoder the sample and the epoch. Elsewhere it draws by the
    clip's bytes; there, and by number, a sampler that differs by epoch needs ``epoch``, else ``ValueError`` is raised.

    - ``sampling``: a sampler, its text such as ``"uniform(8)"``, a table of epochs such as ``{0: …, 10: …}``, or None for all frames.
    - ``size``: None as coded, the shorter side, or (height, width), in pixels.
    - ``audio``: True for the sound at its own rate, a number for another one, in Hz.
    - ``members``: the suffix of what is a clip, or several.
    - ``source``: the field of a sample that names its clip, in place of members: a URL or path as text, or a table as ``source_of`` takes
      it; ``json.url`` is the ``url`` in the field ``json``. The field stays, and members stay as they are. A live stream has no frames by
      number, and is refused.
    - ``seed``: a whole number. What a sampler draws is a function of seed, epoch, the sample's shard and key, and how often the pass
      came to them before: alike in any worker, anew in each epoch and at each visit.
    - ``epoch``: a whole number, or what is asked for one: a callable, or an object with ``value`` or ``get_value()``. Without it
      ``fb.WebDataset`` says which epoch it is in (with ``.repeat(n)`` each pass is one), and other pipelines' passes are counted, over the
      workers of a ``DataLoader`` too.
    - ``threads``: of a decoder, 1 to 256; more than one pays where there are fewer workers than processors.
    - ``time_limit_s``: seconds above 0 for a clip; None for ever.
    - ``metadata``: the table that ``forebay index --video`` wrote, for samplers by motion or sound. A clip that it does not know is looked
      at when it is first used, which is added to the table; so the table need not be there. A decoder finds clips in it only where
      ``fb.WebDataset`` tells it whose they are; elsewhere it is refused.
    - ``handler``: gets each exception, in the stage; True leaves the sample out, None raises it.
    - ``replace_corrupt``: True gives, in the place of a sample whose clip cannot be decoded, the one before once more, so that batches do
      not shrink; its ``__corrupt__`` is the bad one's key, and "" elsewhere.

    Raises ``TypeError`` and ``ValueError`` for arguments, ``ModuleNotFoundError`` without PyAV; while it is read ``fb.VideoError`` naming
    clip and shard, and what reading raises. ``fb.counters()`` counts clips, frames, bytes and what went wrong.
    """
    if importlib.util.find_spec("av") is None:
        raise ModuleNotFoundError("video needs PyAV and numpy: install forebay[video]", name="av")
    if not isinstance(audio, int) or not 0 <= audio <= MOST_HZ:
        raise ValueError(f"audio takes True, False or a rate in Hz; got {audio!r}")
    check_epoch(epoch)
    seed = whole("seed", seed, "a whole number", -(1 << 63))
    if whole("threads", threads, "a number of threads from 1", 1) > MOST_THREADS:
        raise ValueError(f"threads takes at most {MOST_THREADS}; got {threads!r}")
    _check_limit(time_limit_s)
    if handler is not None and not callable(handler):
        raise TypeError(f"handler takes a function of an exception, such as wds.warn_and_continue; got {handler!r}")
    if source is not None and (not isinstance(source, str) or not source):
        raise TypeError(f"source takes the name of a field of a sample, such as 'url'; got {source!r}")
    asked = ClipArguments(
        _sampler(sampling), check_size(size), audio, _suffixes(members), seed, threads, time_limit_s, _metadata(metadata), source or ""
    )
    return ClipStage(asked, epoch, handler, replace_corrupt)


def _suffixes(members: Any) -> FrozenSet[str]:
    """A text is one suffix and no list of letters; a dot before it and its case do not matter."""
    named = [members] if isinstance(members, str) else list(members) if isinstance(members, Iterable) else [members]
    if not named or not all(isinstance(one, str) and one.strip(".") for one in named):
        raise TypeError(f"members takes a suffix such as 'mp4', or several; got {members!r}")
    return frozenset(one.rpartition(".")[2].lower() for one in named)


def _check_limit(seconds: Any) -> None:
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"time_limit_s takes seconds above 0, or None for no limit; got {seconds!r}")
    if not 0 < seconds < inf:
        raise ValueError(f"time_limit_s takes seconds above 0, or None for no limit; got {seconds!r}")


def _metadata(path: Union[str, "os.PathLike[str]", None]) -> Any:
    if path is None:
        return None
    from forebay_loader.videos.metadata.clip_metadata import ClipMetadata  # noqa: PLC0415  # numpy

    return ClipMetadata(path)


def _sampler(sampling: Any) -> Any:
    if sampling is None:
        return None
    from forebay_loader.videos.sampling import sampler_of  # noqa: PLC0415  # for those who name one

    return sampler_of(sampling)
