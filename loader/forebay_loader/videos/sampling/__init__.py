"""Which frames of a clip are taken: pure functions of what is known of the clip and of a seed.

| sampler | frames | needs |
|---|---|---|
| ``uniform(n)`` | ``n`` evenly spread by number, or one at random of each of ``n`` equal spans | their count |
| ``keyframes(n)`` | ``n`` of the frames that decode alone: the cheapest there is | the keyframes |
| ``fps(r, n)`` | what is shown every ``1 / r`` seconds | times |
| ``clip(start_s, length, stride)`` | every ``stride``-th frame from a time on, or from a random frame | times |
| ``clips(count, length, stride)`` | ``count`` such windows, evenly spread or random | their count |
| ``adaptive(n, by)`` | ``n``, denser where the picture moves or the sound is loud | a scan |
| ``by_epoch({0: a, 10: b})`` | ``a`` first, ``b`` from epoch 10 on | |
| ``time_warp(a)``, ``frame_drop(a)`` | those of ``a``, played at another speed, or with frames that stand | |

A sampler is any callable ``(ClipInfo, seed) -> Sampling``. These are values: they compare, travel to workers, and print as the text that
``sampler_of`` reads. The same clip and seed give the same frames in every process and with every Python (see ``draws``).
"""

from __future__ import annotations

from forebay_loader.videos.sampling.adaptive import adaptive
from forebay_loader.videos.sampling.augmentations import frame_drop, time_warp
from forebay_loader.videos.sampling.phases import by_epoch, drawn, for_epoch, phased
from forebay_loader.videos.sampling.sampler import NoFrames, NotScanned, Sampler, Sampling, SamplingError, TooFewFrames, sample_seed
from forebay_loader.videos.sampling.samplers import clip, clips, fps, keyframes, uniform
from forebay_loader.videos.sampling.text import sampler_of

__all__ = [
    "NoFrames",
    "NotScanned",
    "Sampler",
    "Sampling",
    "SamplingError",
    "TooFewFrames",
    "adaptive",
    "by_epoch",
    "clip",
    "clips",
    "drawn",
    "for_epoch",
    "fps",
    "frame_drop",
    "keyframes",
    "phased",
    "sample_seed",
    "sampler_of",
    "time_warp",
    "uniform",
]
