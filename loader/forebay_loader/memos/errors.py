"""What a memo refuses. None is an ``OSError``: no handler of webdataset's may pass it over."""

from __future__ import annotations

__all__ = ["MemoError", "MemoRefused"]


class MemoError(RuntimeError):
    """The folder of a memo cannot be used as it is: says why, and what to do."""


class MemoRefused(TypeError):
    """A transform or a value of which nothing exact can be kept: says which, and what to give instead."""
