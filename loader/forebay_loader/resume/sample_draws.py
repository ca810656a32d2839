"""``fb.rng(sample)``: what augmentation draws from, so that a sample looks the same whenever it is read in its epoch."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from typing import Any

__all__ = ["draw_for", "drawn_for", "rng", "times_asked"]

_PASS = threading.local()  # .key: of the pass that this thread pulls from


def rng(sample: Any) -> random.Random:
    """A generator for ``sample``, a function of the data set's seed, the epoch and the sample's key: the same after a resume, in any
    worker, and another one in the next epoch.

    Example::

        def crop(sample):
            draws = fb.rng(sample)
            return {**sample, "left": draws.randrange(32), "flip": draws.random() < 0.5}

        dataset = fb.WebDataset(urls, shardshuffle=True).shuffle(1000).map(crop)

    - ``sample``: with its ``__key__``, or the key alone.

    For numpy: ``numpy.random.default_rng(fb.rng(sample).getrandbits(128))``; for torch: ``generator.manual_seed(draws.getrandbits(63))``.
    Asked twice for a sample it begins again. Raises ``RuntimeError`` outside the stages of an ``fb.WebDataset``, where nobody knows the
    epoch, and ``TypeError`` for what has no key.
    """
    key = sample.get("__key__") if isinstance(sample, Mapping) else sample
    if not isinstance(key, str):
        raise TypeError(f"fb.rng takes a sample with its '__key__', or the key; got {type(sample).__name__}: call it before to_tuple")
    told = getattr(_PASS, "key", None)
    if told is None:
        raise RuntimeError("fb.rng is for functions in .map and the like of an fb.WebDataset: nobody else knows seed and epoch of a sample")
    _PASS.times = times_asked() + 1
    return random.Random(f"sample/{told}/{key}")  # noqa: S311  # for augmentation, no secret


def times_asked() -> int:
    """How often this thread was given a generator."""
    return int(getattr(_PASS, "times", 0))


def draw_for(key: str) -> None:
    """What this thread pulls next is of the pass ``key``."""
    _PASS.key = key


def drawn_for(key: str) -> None:
    """The pass ``key`` is over, or was left; another that this thread pulls from by now goes on."""
    if getattr(_PASS, "key", None) is key:
        _PASS.key = None
