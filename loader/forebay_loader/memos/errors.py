"""What a memo refuses, which is no ``OSError``, since no handler of webdataset's may pass it over; and a store that is full."""

from __future__ import annotations

__all__ = ["MemberMissing", "MemoError", "MemoRefused", "StoreFull"]


class MemoError(RuntimeError):
    """The folder of a memo cannot be used as it is: says why, and what to do."""


class MemoRefused(TypeError):
    """A transform or a value of which nothing exact can be kept: says which, and what to give instead."""


class MemberMissing(LookupError):
    """A sample without a member that ``fb.memo(key=…)`` names: the sample's error, which handlers are asked about."""


class StoreFull(OSError):
    """There is no room for what is to be put: the disk is full, or the store has grown to its limit."""
