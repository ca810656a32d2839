"""What a memo refuses. None is an ``OSError``: no handler of webdataset's may pass it over."""

from __future__ import annotations

__all__ = ["MemberMissing", "MemoError", "MemoRefused"]


class MemoError(RuntimeError):
    """The folder of a memo cannot be used as it is: says why, and what to do."""


class MemoRefused(TypeError):
    """A transform or a value of which nothing exact can be kept: says which, and what to give instead."""


class MemberMissing(LookupError):
    """A sample without a member that ``fb.memo(key=…)`` names: the sample's error, which handlers are asked about."""
