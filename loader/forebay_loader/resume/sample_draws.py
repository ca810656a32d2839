"""``fb.rng(sample)``: random draws for augmentation that depend on the sample and the epoch, not on when it is read."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Mapping
from typing import Any

from forebay_loader.samples.shard_name import drawn_as

__all__ = ["draw_for", "drawn_for", "rng", "times_asked"]

_PASS = threading.local()  # .key: of the pass that this thread reads from
os.register_at_fork(after_in_child=lambda: vars(_PASS).clear())  # a child reads from passes of its own


def rng(sample: Any) -> random.Random:
    """A random generator for ``sample``: the same after a resume and in any worker, another one in the next epoch.

    It depends on the data set's seed, the epoch, the sample's shard and key, and on how often this pass has read the shard before. For
    numpy: ``numpy.random.default_rng(fb.rng(sample).getrandbits(128))``. For torch:
    ``generator.manual_seed(fb.rng(sample).getrandbits(63))``.

    Args:
        sample: A sample with its ``__key__`` and ``__url__``. A shard is known by its URL without a query and by its place in the list. A
            shard that is listed twice, or drawn again by ``resampled=True``, draws other numbers.

    Returns:
        The generator. A second call for the same sample begins again.

    Raises:
        RuntimeError: It was called outside the stages of an ``fb.WebDataset``, so the epoch is not known.
        TypeError: ``sample`` has no key or no shard.

    Examples:
        >>> def crop(sample):
        ...     draws = fb.rng(sample)
        ...     return {**sample, "left": draws.randrange(32), "flip": draws.random() < 0.5}
        >>> dataset = fb.WebDataset(urls, shardshuffle=True).shuffle(1000).map(crop)
        >>> next(iter(dataset))["left"] < 32
        True
    """
    if not isinstance(sample, Mapping) or not isinstance(sample.get("__key__"), str) or "__url__" not in sample:
        found = f"a {type(sample).__name__}" + (f" of {', '.join(sorted(map(str, sample)))[:80]}" if isinstance(sample, Mapping) else "")
        raise TypeError(
            f"fb.rng takes a sample with its '__key__' and '__url__', for other shards may have the same key; got {found}: call it before "
            "to_tuple and batched, and where a function makes a new sample, let it hand both on"
        )
    told = getattr(_PASS, "key", None)
    if told is None:
        raise RuntimeError("fb.rng is for functions in .map and the like of an fb.WebDataset: nobody else knows seed and epoch of a sample")
    _PASS.times = times_asked() + 1
    seed = f"sample/{told}/{drawn_as(sample)}".encode("utf-8", "surrogateescape")  # a key may be no UTF-8
    return random.Random(seed)  # noqa: S311  # for augmentation, no secret


def times_asked() -> int:
    """How often a generator was requested in this thread."""
    return int(getattr(_PASS, "times", 0))


def draw_for(key: str) -> None:
    """From now on this thread reads from the pass ``key``."""
    _PASS.key = key


def drawn_for(key: str) -> None:
    """The pass ``key`` ended or was abandoned. If this thread now reads from another pass, that one stays."""
    if getattr(_PASS, "key", None) is key:
        _PASS.key = None
