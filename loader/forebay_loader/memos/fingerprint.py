"""What a transform is, as far as anything that changes its results can be told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Union

from forebay_loader.memos.code_print import CodePrint
from forebay_loader.memos.entry import KEY_BYTES
from forebay_loader.memos.sample_name import SAMPLE_BYTES

__all__ = ["Fingerprint", "fingerprint_of"]

_BYTES = KEY_BYTES - SAMPLE_BYTES


@dataclass(frozen=True)
class Fingerprint:
    """``name``: for people. ``digest``: the first bytes of the key of whatever the transform makes."""

    name: str
    digest: bytes

    def key(self, sample: bytes) -> bytes:
        """The key of what the transform makes of the sample of that name."""
        return self.digest + sample


def fingerprint_of(transform: Any, version: Union[str, int, None] = None, more: Any = None) -> Fingerprint:
    """Of ``transform``: its qualified name, its arguments, what it captured, and its source, in place of which ``version`` stands if it is
    given. ``more`` counts as an argument. Raises ``MemoRefused`` for what has no source, or arguments that are no plain values."""
    told = None if version is None else str(version)
    printed = CodePrint(told)
    text = json.dumps([told, printed.of(transform), printed.of(more)])
    return Fingerprint(_shown(transform), blake2b(text.encode(), digest_size=_BYTES).digest())


def _shown(transform: Any) -> str:
    made = getattr(transform, "func", None) or (getattr(transform, "args", None) or [None])[0] or transform
    return str(getattr(made, "__qualname__", None) or repr(made))[:200]
