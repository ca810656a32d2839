"""``fb.video``: the clips of samples as arrays, as a stage of a pipeline, as a decoder for ``.decode(…)``, and for random access.

Neither PyAV nor numpy is imported before a clip is decoded: whoever imports ``forebay_loader`` may have none.
"""

from __future__ import annotations

import importlib.util
import os
from math import inf
from typing import TYPE_CHECKING, Any, FrozenSet, Iterable, Mapping, Optional, Union

from forebay_loader.base.argument_types import check_epoch, whole
from forebay_loader.meter.skips.recorded_handler import Handler
from forebay_loader.videos.clip_pass import ClipArguments
from forebay_loader.videos.clip_stage import ClipStage
from forebay_loader.videos.decode.frame_size import Size, check_size

if TYPE_CHECKING:
    from forebay_loader.plan.ahead import Epoch
    from forebay_loader.videos.sampling.sampler import Sampler

__all__ = ["video"]

SUFFIXES = ("mp4", "webm", "mkv", "mov", "m4v", "avi", "mpg", "mpeg", "ogv", "wmv", "ts")
MOST_HZ = 1 << 20
MOST_THREADS = 256  # of one decoder; FFmpeg asks for memory for each before it looks whether they are of use


def video(
    sampling: Union[str, Sampler, Mapping[int, Union[str, Sampler]], None] = None,
    size: Size = None,
    audio: Union[bool, int] = False,
    *,
    members: Union[str, Iterable[str]] = SUFFIXES,
    source: Optional[str] = None,
    seed: int = 0,
    epoch: Epoch = None,
    threads: int = 1,
    time_limit_s: Optional[float] = 60.0,
    metadata: Union[str, "os.PathLike[str]", None] = None,
    frames: Any = None,
    handler: Optional[Handler] = None,
    replace_corrupt: bool = False,
) -> ClipStage:
    """Decode the frames of each clip that ``sampling`` chooses, and no others, from memory or by ranges. For ``.compose`` and ``.decode``.

    As a stage it replaces the clip's bytes in each sample with:

    - ``frames``, T x H x W x 3 uint8, RGB.
    - ``mask``, T bool, False for a frame that only fills its place.
    - ``video``, the clip's ``ClipInfo``.
    - ``audio``, only with ``audio=``: channels x samples float32, from the begin of the first chosen frame to the end of the last.
    - ``audio_rate_hz``, only with ``audio=``: samples a second, 0 for a clip without sound.

    The keys of a member ``left.mp4`` begin with ``left.``. Samples without a clip pass unchanged.

    As a decoder it returns ``(frames, audio, info)`` in numpy, as ``wds.torch_video`` did. ``info`` has ``video_fps``, ``audio_fps`` if
    there is sound, ``mask`` and ``video``. Only ``fb.WebDataset`` tells a decoder the sample and the epoch. Elsewhere it draws by the
    clip's bytes. There, and for samples by number, a sampler that differs by epoch needs ``epoch``. ``fb.counters()`` counts clips, frames
    and bytes.

    Args:
        sampling: A sampler, its text such as ``"uniform(8)"``, a table by first epoch such as ``{0: …, 10: …}``, or None for all frames.
        size: None for the size as coded, a number for the shorter side, or ``(height, width)``; in pixels.
        audio: True for the sound at its own rate, or a rate in Hz.
        members: The suffix of the members that are clips, or several.
        source: The field of a sample that names its clip, instead of members: a URL or path as text, or a table of settings as
            ``source_of`` takes it. ``json.url`` is the ``url`` in the field ``json``. The field and all members stay as they are. A live
            stream has no frames by number and is refused.
        seed: A whole number. A sampler's draws depend on the seed, the epoch, the sample's shard and key, and on how often the pass came to
            them before. They are the same in any worker.
        epoch: A whole number, a callable, or an object with ``value`` or ``get_value()``. Without it ``fb.WebDataset`` says the epoch (each
            pass of ``.repeat(n)`` is one). Passes of other pipelines are counted, also in the workers of a ``DataLoader``.
        threads: Threads of one decoder, 1 to 256. More than one is worth it if there are fewer workers than processors.
        time_limit_s: Seconds for one clip, above 0. None for no limit.
        metadata: The table that ``forebay index --video`` wrote, for samplers by motion or sound. A clip that is missing in it is analysed
            when it is first used and then added, so the table may be absent. A decoder needs ``fb.WebDataset`` to use it.
        frames: What ``fb.frames(…)`` returns: all frames of a clip are kept on the disk after its first use, and later ones are read there.
        handler: Gets each exception of the stage. If it returns True, the sample is left out. None raises the exception.
        replace_corrupt: True repeats the previous sample if a clip cannot be decoded, so that batches keep their size. ``__corrupt__`` is
            then the key of the broken sample, and "" in other samples.

    Returns:
        The stage, which is a decoder too.

    Raises:
        TypeError: An argument has the wrong kind.
        ValueError: An argument has a value that cannot be. While it is read: two clips of a sample would have the same keys (``a.mp4`` and
            ``a.webm``), or a sampler needs ``epoch``.
        ModuleNotFoundError: PyAV is not installed.
        fb.VideoError: While it is read: a clip cannot be decoded. It names clip and shard.

    Examples:
        >>> dataset = fb.WebDataset(urls).compose(fb.video("uniform(8)", size=224, audio=16_000)).to_tuple("frames", "audio", "json")
        >>> dataset = fb.WebDataset(urls).decode(fb.video("fps(4, 16)")).to_tuple("mp4", "json")
        >>> stage = fb.video("clip(0, 16, 2)", size=(224, 224))
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
    if frames is not None and not hasattr(frames, "find"):
        raise TypeError(f"frames takes what fb.frames(…) returns; got {frames!r}")
    if source is not None and (not isinstance(source, str) or not source):
        raise TypeError(f"source takes the name of a field of a sample, such as 'url'; got {source!r}")
    asked = ClipArguments(
        _sampler(sampling),
        check_size(size),
        audio,
        _suffixes(members),
        seed,
        threads,
        time_limit_s,
        _metadata(metadata),
        source or "",
        frames,
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
