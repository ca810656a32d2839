"""Which sample a transform was given: a digest of what went into it.

Not the shard's version: a sample does not tell it, and it would say nothing of the stages before. The digest is of what the transform
really is given, so a changed shard, another decoder before it or another resize is another key by itself, and a shard that was only
renamed, signed anew or packed anew is the same.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import xxhash

from forebay_loader.memos.errors import MemoRefused
from forebay_loader.memos.kept_value import taken_apart

__all__ = ["SAMPLE_BYTES", "Naming", "name_of_sample"]

SAMPLE_BYTES = 16
Naming = Union[None, str, Sequence[str], Callable[[Any], Any]]  # what ``fb.memo(key=…)`` takes


def name_of_sample(sample: Any, naming: Naming) -> bytes:
    """16 bytes. ``naming``: None for all that the sample holds, the names of some of its members, or a function that answers with what
    tells samples apart. Raises ``MemoRefused`` for what no digest can be made of, ``KeyError`` for a member that is not there."""
    if callable(naming):
        told = naming(sample)
    elif isinstance(sample, Mapping):
        told = _members(sample, naming)
    elif naming is not None:
        raise MemoRefused(f"key={naming!r} names members of a sample, and this is a {type(sample).__name__}")
    else:
        told = sample
    try:
        kept = taken_apart(told, views=True)
    except MemoRefused as error:
        raise MemoRefused(f"a memo finds what it kept by a digest of the sample, which cannot be made: {error}; or give key=") from error
    digest = blake2b(kept.text, digest_size=SAMPLE_BYTES)
    for one in kept.arrays:
        digest.update(xxhash.xxh3_128_digest(one.reshape(-1).view("u1")) if one.nbytes else b"")
    return digest.digest()


def _members(sample: Mapping[str, Any], naming: Optional[Union[str, Sequence[str]]]) -> Any:
    """``__url__`` and the like are about where a sample lies; it may be signed anew, or moved."""
    if naming is None:
        return [[name, one] for name, one in sample.items() if name == "__key__" or not str(name).startswith("__")]
    names = [naming] if isinstance(naming, str) else list(naming)
    return [sample.get("__key__"), *([name, sample[name]] for name in names)]
