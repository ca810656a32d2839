"""One sample's clips, decoded: the frames that its sampler chooses, and the sound that belongs to them."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from math import inf
from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Tuple

import numpy

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.errors import ShardReadError
from forebay_loader.base.notices import notice_once
from forebay_loader.base.shown_text import shown_message, shown_shard
from forebay_loader.meter.profile_ranges import profiled
from forebay_loader.samples.indexed_shard import MemberBytes
from forebay_loader.samples.shard_name import drawn_as, shard_name
from forebay_loader.videos.clip_field import clip_named_in, scanned_as, shown_clip, url_of
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.clip_pass import ClipArguments, ClipPass, ClipVisit
from forebay_loader.videos.decode.frame_size import Size
from forebay_loader.videos.decode.sound import resampled
from forebay_loader.videos.errors import MissingVideo, UnsupportedVideo, VideoError
from forebay_loader.videos.metadata.motion import LOOK
from forebay_loader.videos.metadata.record import clip_name
from forebay_loader.videos.sampling import Sampling, for_epoch, sample_seed
from forebay_loader.videos.sources.choice import source_of
from forebay_loader.videos.sources.clip_bytes import MemberClip
from forebay_loader.videos.sources.clip_source import ClipSource
from forebay_loader.videos.sources.live_source import LiveSource
from forebay_loader.videos.sources.video_source import VideoSource

__all__ = ["decoded_member", "decoded_sample", "named_source"]

Opened = Callable[[Size], VideoSource]  # the clip's source, whose frames have that size


class DecodedClip(NamedTuple):
    """``frames`` T x H x W x 3 uint8; ``mask`` T bool; ``audio`` channels x samples float32 of ``rate_hz``, 0 without sound."""

    info: ClipInfo
    frames: Any
    mask: Any
    audio: Any
    rate_hz: int


def decoded_sample(sample: Mapping[str, Any], wants: Callable[[str], bool], asked: ClipArguments, visit: ClipVisit) -> Dict[str, Any]:
    """``sample`` with arrays in the place of its clips, or beside the field that names its clip, as ``fb.video`` says."""
    clips = (
        {asked.source: clip_named_in(sample, asked.source)}
        if asked.source
        else {key: value for key, value in sample.items() if not key.startswith("__") and wants(key)}
    )
    found = {key: value for key, value in sample.items() if asked.source or key not in clips}
    name, shard = str(sample.get("__key__", "")), shown_shard(sample.get("__url__", ""))
    _check_names(clips, found, asked, name, shard)
    for suffix, value in clips.items():
        seed = sample_seed(asked.seed, visit.epoch, f"{drawn_as(sample)}.{suffix}", visit.again)
        if asked.source:
            stem, known_as = "", clip_name(shard_name(scanned_as(value)))
            with _named(shown_clip(value), "" if str(sample.get("__url__")) == url_of(value) else shard):
                clip = _decoded(partial(named_source, value, asked), asked, visit.phase, seed, known_as)
        else:
            stem, known_as = suffix.rpartition(".")[0], _known_as(sample, f".{suffix}")
            clip = _decoded(partial(_member_source, value, f"{name}.{suffix}", shard, asked), asked, visit.phase, seed, known_as)
        prefix = f"{stem}." if stem else ""
        made = {f"{prefix}frames": clip.frames, f"{prefix}mask": clip.mask, f"{prefix}video": clip.info}
        if asked.audio:
            made.update({f"{prefix}audio": clip.audio, f"{prefix}audio_rate_hz": clip.rate_hz})
        found.update(made)
    return found


def _known_as(sample: Mapping[str, Any], key: str) -> str:
    """How a scan calls the member of ``sample`` that ends in ``key``."""
    return clip_name(shard_name(str(sample.get("__url__", ""))), f"{sample.get('__key__', '')}{key}")


_GONE = (404, 410)
_NO_CLIP = {
    errno.EINVAL: "is a pipe or a device, and no clip",
    errno.ELOOP: "is a symbolic link that leads to itself",
    errno.ENAMETOOLONG: "no file can have a name as long",
}
_NAME_APART = "name the clips apart in the shard (left.mp4, right.mp4), or choose by members= or select_files="


def _check_names(clips: Mapping[str, Any], kept: Mapping[str, Any], asked: ClipArguments, name: str, shard: str) -> None:
    """Raise ``ValueError`` where the arrays of a clip would stand in the place of something else of its sample."""
    taken = dict.fromkeys(kept, "a member")
    for suffix in clips:
        for what in ("frames", "mask", "video", *(("audio", "audio_rate_hz") if asked.audio else ())):
            key = ".".join(part for part in ("" if asked.source else suffix.rpartition(".")[0], what) if part)
            if key in taken:
                raise ValueError(
                    f"{name}.{suffix} in {shard}: its {what} would take the place of {key!r}, which {taken[key]} gives: "
                    + ("rename that field" if asked.source else _NAME_APART)
                )
            taken[key] = f"{name}.{suffix}"


def decoded_member(key: str, data: Any, asked: ClipArguments, of: ClipPass, sample: Mapping[str, Any]) -> Tuple[Any, Any, Dict[str, Any]]:
    """(frames, audio, info) of a clip in memory, as ``wds.torch_video`` gave them, in numpy.

    ``key``: a dot and its suffix in ``sample``; where that is not known, its bytes are the clip's name.
    """
    named = f"{drawn_as(sample)}{key}" if sample else blake2b(data, digest_size=16).hexdigest() if asked.sampling is not None else ""
    visit = of.visit(named)
    seed = sample_seed(asked.seed, visit.epoch, named, visit.again)
    known_as = _known_as(sample, key) if sample else ""
    clip = _decoded(partial(_member_source, data, key, "", asked), asked, visit.phase, seed, known_as)
    info: Dict[str, Any] = {"video_fps": clip.info.fps, "video": clip.info, "mask": clip.mask}
    if clip.rate_hz:
        info["audio_fps"] = clip.rate_hz
    return clip.frames, clip.audio, info


def _decoded(opened: Opened, asked: ClipArguments, epoch: int, seed: int, known_as: str) -> DecodedClip:
    with profiled("forebay.video"), opened(asked.size) as source:
        source.limit_together()
        kept = None if asked.frames is None else asked.frames.find(source.clip, source.size)
        info = _scanned((kept and kept.info) or source.open(), source, opened, asked, known_as)
        chosen = _chosen(info, asked.sampling, epoch, seed, source)
        frames = None if kept is None else kept.frames(chosen.frames)
        if frames is None:
            frames = source.frames(chosen.frames)
            if kept is not None:
                kept.decoded()
        audio, rate_hz = numpy.zeros((0, 0), numpy.float32), 0
        if asked.audio:
            audio, rate_hz = _all_sound(source) if asked.as_torchvision else source.audio(*_span(info, chosen))
            if asked.audio is not True and rate_hz:
                with source.named():
                    audio, rate_hz = resampled(audio, rate_hz, asked.audio), asked.audio
    COUNTS.add("video_clips")
    return DecodedClip(info, frames, numpy.array(chosen.mask, bool), audio, rate_hz)


def _all_sound(source: VideoSource) -> Tuple[Any, int]:
    """From its begin to its end. None where it cannot be read, as torchvision has it, and that is told once."""
    try:
        return source.audio(-inf, inf)
    except UnsupportedVideo as error:
        COUNTS.add("video_unheard")
        notice_once("video_unheard", f"{error}; such clips are given without sound, as torchvision does (fb.counters()['video_unheard'])")
        return numpy.zeros((0, 0), numpy.float32), 0


def _scanned(info: ClipInfo, source: VideoSource, opened: Opened, asked: ClipArguments, known_as: str) -> ClipInfo:
    """``info`` with what a scan knows of the clip, or finds out now."""
    clip_bytes = source.clip_bytes() if asked.metadata is not None and known_as else 0
    if not clip_bytes:
        return info
    found: ClipInfo = asked.metadata.completed(info, known_as, clip_bytes, partial(opened, LOOK))
    return found


def _chosen(info: ClipInfo, sampling: Any, epoch: int, seed: int, source: VideoSource) -> Sampling:
    """What the sampler of ``epoch`` takes. Its errors know no names; here they are given."""
    if sampling is None:
        return Sampling(tuple(range(info.frames)), (True,) * info.frames)
    try:
        found: Sampling = for_epoch(sampling, epoch)(info, seed)
    except VideoError as error:
        raise error.of(source.name, source.shard) from error
    return found


def _span(info: ClipInfo, chosen: Sampling) -> Tuple[float, float]:
    """From the begin of the first chosen frame to the end of the last, in seconds; all of it where none were chosen."""
    if not chosen.frames:
        return 0.0, info.duration_s
    last = max(chosen.frames) + 1
    return info.times_s[min(chosen.frames)], info.times_s[last] if last < info.frames else info.duration_s


def _member_source(value: Any, name: str, shard: str, asked: ClipArguments, size: Size) -> VideoSource:
    """Of a member: its bytes, or ``MemberBytes``."""
    if isinstance(value, MemberBytes):
        member = MemberClip(value.read, value.size, name, shard, value.expect, (*value.of, value.offset), value.here)
        return ClipSource(member, size=size, threads=asked.threads, time_limit_s=asked.time_limit_s)
    return source_of(memoryview(value), size=size, threads=asked.threads, time_limit_s=asked.time_limit_s, name=name, shard=shard)


def named_source(value: Any, asked: ClipArguments, size: Size) -> VideoSource:
    """Of what a field names. Raises ``UnsupportedVideo`` where it names no clip that has frames by number."""
    text = url_of(value)
    if not text or "\0" in text:
        raise UnsupportedVideo(f"the field {asked.source!r} names no clip: it takes a URL or path as text, or a table with a url")
    try:
        found = source_of(value, size=size, threads=asked.threads, time_limit_s=asked.time_limit_s)
    except (ValueError, ShardReadError) as error:
        raise UnsupportedVideo(str(error) if text.startswith("lmdb:") else shown_message(str(error))) from None
    if isinstance(found, LiveSource):
        raise UnsupportedVideo("is a live stream or a camera, whose frames come in their own order: fb.Clips.stream(url) gives them")
    return found


@contextmanager
def _named(clip: str, shard: str) -> Iterator[None]:
    """Errors of a clip that a field names are told by that; that it is not there is told as what is wrong with it."""
    try:
        yield
    except VideoError as error:
        raise error.of(clip, shard) from error
    except (FileNotFoundError, NotADirectoryError):
        raise MissingVideo("there is no such file", clip, shard) from None
    except IsADirectoryError:
        raise MissingVideo("is a directory, and no clip", clip, shard) from None
    except ShardReadError as error:
        if error.status not in _GONE:
            raise
        raise MissingVideo(str(error), clip, shard) from error
    except OSError as error:
        if not error.filename or error.errno not in _NO_CLIP:
            raise
        raise MissingVideo(_NO_CLIP[error.errno], clip, shard) from None
