"""What public arguments may be: a value of another kind is named where it is given, not by a library's error far below it."""

from __future__ import annotations

import operator
from typing import Any, Optional

from forebay_loader.base.timeouts import Limits

__all__ = ["check_epoch", "check_limits", "check_reading", "rank_of", "whole"]


def whole(name: str, value: Any, what: str, least: int = 0) -> int:
    """``value`` as a whole number. ``TypeError`` for what is none, ``ValueError`` below ``least``; ``what`` says in words what is taken."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} takes {what}; got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} takes {what}; got {value!r}")
    return number


def check_reading(handler: Any, select_files: Any, rename_files: Any, limits: Any) -> None:
    """Check the four arguments of every stage that reads. Raises ``TypeError`` for one of a wrong type."""
    _check_callable("handler", handler, "a function of an exception, such as wds.warn_and_continue")
    _check_callable("select_files", select_files, "a function of a file's name")
    _check_callable("rename_files", rename_files, "a function of a file's name")
    check_limits(limits)


def check_limits(limits: Any) -> None:
    if not isinstance(limits, Limits):
        raise TypeError(f"limits takes fb.Limits(…); got {limits!r}")


def check_epoch(value: Any) -> None:
    """``TypeError`` for what tells no epoch; an object is asked when an iteration begins, not here."""
    if value is None or callable(value) or hasattr(value, "value") or hasattr(value, "get_value"):
        return
    whole("epoch", value, "a whole number from 0, a callable that gives one, or an object with value or get_value()")


def rank_of(value: Any) -> "tuple[int, int]":
    """``data_parallel=(rank, size)`` as two numbers; digits, as a launcher's variables hold them, are numbers too."""
    try:
        pair = [] if isinstance(value, (str, bytes)) else [_number(one) for one in value]
    except TypeError:
        pair = []
    if len(pair) != 2 or pair[0] is None or pair[1] is None:
        raise TypeError(f"data_parallel takes (rank, size), two whole numbers such as (0, 8); got {value!r}")
    return pair[0], pair[1]


def _check_callable(name: str, value: Any, what: str) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{name} takes {what}; got {value!r}")


def _number(value: Any) -> Optional[int]:
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() else None
    try:
        return operator.index(value)
    except TypeError:
        return None
