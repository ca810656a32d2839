"""Which sample a transform was given: a digest of what went into it.

Not the shard's version: a sample does not tell it, and it would say nothing of the stages before. The digest is of what the transform
really is given, so a changed shard, another decoder before it or another resize is another key by itself, and a shard that was only
renamed, signed anew or packed anew is the same.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Sequence, Union

from forebay_loader.base.shown_text import shown_source
from forebay_loader.memos.errors import MemberMissing, MemoRefused
from forebay_loader.memos.kept_value import PLACE, digest_of, taken_apart

__all__ = ["SAMPLE_BYTES", "Naming", "name_of_sample"]

SAMPLE_BYTES = 16
Naming = Union[None, str, Sequence[str], Callable[[Any], Any]]  # what ``fb.memo(key=…)`` takes


def name_of_sample(sample: Any, naming: Naming) -> bytes:
    """16 bytes. ``naming``: None for all that the sample holds, the names of some of its members, or a function that answers with what
    tells samples apart. Raises ``MemoRefused`` for what no digest can be made of, ``MemberMissing``."""
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
    return digest_of(kept, SAMPLE_BYTES)


def _members(sample: Mapping[str, Any], naming: Optional[Union[str, Sequence[str]]]) -> Any:
    if naming is None:
        return [[name, one] for name, one in sample.items() if name not in PLACE]
    names = [naming] if isinstance(naming, str) else list(naming)
    missing = [name for name in names if name not in sample]
    if missing:
        raise MemberMissing(
            f"the sample {sample.get('__key__')!r} of {shown_source(sample.get('__url__') or 'a shard that is not known')} has no "
            f"{', '.join(map(repr, missing))}, which fb.memo(key=…) names; it has {', '.join(map(repr, sample))}"
        )
    return [sample.get("__key__"), *([name, sample[name]] for name in names)]
