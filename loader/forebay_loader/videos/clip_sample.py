"""One sample's clips, decoded: the frames that its sampler chooses, and the sound that belongs to them."""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from math import inf
from typing import Any, Callable, Dict, Mapping, NamedTuple, Tuple

import numpy

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.notices import notice_once
from forebay_loader.base.shown_text import shown_shard
from forebay_loader.meter.profile_ranges import profiled
from forebay_loader.samples.indexed_shard import MemberBytes
from forebay_loader.samples.shard_name import drawn_as, shard_name
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.clip_pass import ClipArguments, ClipPass, ClipVisit
from forebay_loader.videos.decode.frames import ClipTimer
from forebay_loader.videos.decode.sound import resampled
from forebay_loader.videos.errors import UnsupportedVideo, VideoError
from forebay_loader.videos.metadata.motion import LOOK
from forebay_loader.videos.metadata.record import clip_name
from forebay_loader.videos.sampling import Sampling, for_epoch, sample_seed
from forebay_loader.videos.sources.clip_bytes import ClipBytes, MemberClip, MemoryClip
from forebay_loader.videos.sources.clip_source import ClipSource

__all__ = ["decoded_member", "decoded_sample"]


class DecodedClip(NamedTuple):
    """``frames`` T x H x W x 3 uint8; ``mask`` T bool; ``audio`` channels x samples float32 of ``rate_hz``, 0 without sound."""

    info: ClipInfo
    frames: Any
    mask: Any
    audio: Any
    rate_hz: int


def decoded_sample(sample: Mapping[str, Any], wants: Callable[[str], bool], asked: ClipArguments, visit: ClipVisit) -> Dict[str, Any]:
    """``sample`` with arrays in the place of its clips, as ``fb.video`` says."""
    found = {key: value for key, value in sample.items() if key.startswith("__") or not wants(key)}
    name, shard = str(sample.get("__key__", "")), shown_shard(sample.get("__url__", ""))
    _check_names(sample, found, asked, name, shard)
    for suffix, value in sample.items():
        if suffix in found:
            continue
        seed = sample_seed(asked.seed, visit.epoch, f"{drawn_as(sample)}.{suffix}", visit.again)
        known_as = _known_as(sample, f".{suffix}", asked)
        clip = _decoded(_clip_bytes(value, f"{name}.{suffix}", shard), asked, visit.phase, seed, known_as)
        stem = suffix.rpartition(".")[0]
        prefix = f"{stem}." if stem else ""
        made = {f"{prefix}frames": clip.frames, f"{prefix}mask": clip.mask, f"{prefix}video": clip.info}
        if asked.audio:
            made.update({f"{prefix}audio": clip.audio, f"{prefix}audio_rate_hz": clip.rate_hz})
        found.update(made)
    return found


def _known_as(sample: Mapping[str, Any], key: str, asked: ClipArguments) -> str:
    """How a scan calls the member of ``sample`` that ends in ``key``, "" where none is asked."""
    if asked.metadata is None:
        return ""
    return clip_name(shard_name(str(sample.get("__url__", ""))), f"{sample.get('__key__', '')}{key}")


def _check_names(sample: Mapping[str, Any], kept: Mapping[str, Any], asked: ClipArguments, name: str, shard: str) -> None:
    """Raise ``ValueError`` where the arrays of a clip would stand in the place of something else of its sample."""
    taken = dict.fromkeys(kept, "a member")
    for suffix in sample:
        if suffix in kept:
            continue
        for what in ("frames", "mask", "video", *(("audio", "audio_rate_hz") if asked.audio else ())):
            key = ".".join(part for part in (suffix.rpartition(".")[0], what) if part)
            if key in taken:
                raise ValueError(
                    f"{name}.{suffix} in {shard}: its {what} would take the place of {key!r}, which {taken[key]} gives: name the clips "
                    f"apart in the shard (left.mp4, right.mp4), or choose by members= or select_files="
                )
            taken[key] = f"{name}.{suffix}"


def decoded_member(key: str, data: Any, asked: ClipArguments, of: ClipPass, sample: Mapping[str, Any]) -> Tuple[Any, Any, Dict[str, Any]]:
    """(frames, audio, info) of a clip in memory, as ``wds.torch_video`` gave them, in numpy.

    ``key``: a dot and its suffix in ``sample``; where that is not known, its bytes are the clip's name.
    """
    named = f"{drawn_as(sample)}{key}" if sample else blake2b(data, digest_size=16).hexdigest() if asked.sampling is not None else ""
    visit = of.visit(named)
    seed = sample_seed(asked.seed, visit.epoch, named, visit.again)
    clip = _decoded(MemoryClip(data, key), asked, visit.phase, seed, _known_as(sample, key, asked))
    info: Dict[str, Any] = {"video_fps": clip.info.fps, "video": clip.info, "mask": clip.mask}
    if clip.rate_hz:
        info["audio_fps"] = clip.rate_hz
    return clip.frames, clip.audio, info


def _decoded(clip: ClipBytes, asked: ClipArguments, epoch: int, seed: int, known_as: str) -> DecodedClip:
    timer = ClipTimer(asked.time_limit_s, clip.name, clip.shard)
    with profiled("forebay.video"), ClipSource(clip, size=asked.size, threads=asked.threads, timer=timer) as source:
        kept = None if asked.frames is None else asked.frames.find(source.clip, asked.size)
        info = _scanned((kept and kept.info) or source.open(), clip, asked, known_as)
        chosen = _chosen(info, asked.sampling, epoch, seed, clip)
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


def _all_sound(source: ClipSource) -> Tuple[Any, int]:
    """From its begin to its end. None where it cannot be read, as torchvision has it, and that is told once."""
    try:
        return source.audio(-inf, inf)
    except UnsupportedVideo as error:
        COUNTS.add("video_unheard")
        notice_once("video_unheard", f"{error}; such clips are given without sound, as torchvision does (fb.counters()['video_unheard'])")
        return numpy.zeros((0, 0), numpy.float32), 0


def _scanned(info: ClipInfo, clip: ClipBytes, asked: ClipArguments, known_as: str) -> ClipInfo:
    """``info`` with what a scan knows of the clip, or finds out now."""
    if asked.metadata is None or not known_as:
        return info
    found: ClipInfo = asked.metadata.completed(
        info, known_as, clip.open(), partial(ClipSource, clip, size=LOOK, time_limit_s=asked.time_limit_s)
    )
    return found


def _chosen(info: ClipInfo, sampling: Any, epoch: int, seed: int, clip: ClipBytes) -> Sampling:
    """What the sampler of ``epoch`` takes. Its errors know no names; here they are given."""
    if sampling is None:
        return Sampling(tuple(range(info.frames)), (True,) * info.frames)
    try:
        found: Sampling = for_epoch(sampling, epoch)(info, seed)
    except VideoError as error:
        raise error.of(clip.name, clip.shard) from error
    return found


def _span(info: ClipInfo, chosen: Sampling) -> Tuple[float, float]:
    """From the begin of the first chosen frame to the end of the last, in seconds; all of it where none were chosen."""
    if not chosen.frames:
        return 0.0, info.duration_s
    last = max(chosen.frames) + 1
    return info.times_s[min(chosen.frames)], info.times_s[last] if last < info.frames else info.duration_s


def _clip_bytes(value: Any, name: str, shard: str) -> ClipBytes:
    if isinstance(value, MemberBytes):
        return MemberClip(value.read, value.size, name, shard, value.expect)
    return MemoryClip(value, name, shard)
