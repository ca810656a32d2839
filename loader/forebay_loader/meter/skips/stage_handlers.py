"""Handlers of webdataset's own stages, found among the arguments that a stage was given, and recorded."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any, Callable, Iterator, Optional, Tuple

from forebay_loader.meter.skips.recorded_handler import Handler, RecordedHandler, passes_over
from forebay_loader.meter.skips.skip_pass import SkipPass

__all__ = ["has_handler", "recorded_stage"]


def recorded_stage(stage: Any, data: Any, skips: SkipPass) -> Optional[Iterator[Any]]:
    """What ``stage`` makes of ``data``, its handler recorded; None where it has none that passes anything over.

    ``stage`` is a ``FilterFunction`` of webdataset's: a function of ``data`` with the arguments it was given.
    """
    found = _asked(stage)
    if found is None:
        return None
    given, at = found
    handler = RecordedHandler(given, skips)
    if "handler" in stage.kw:
        return handler.counting(stage.f(data, *stage.args, **{**stage.kw, "handler": handler}))
    return handler.counting(stage.f(data, *stage.args[:at], handler, *stage.args[at + 1 :], **stage.kw))


def has_handler(stage: Any) -> bool:
    """Whether ``stage`` has one that passes something over, and is not recorded yet."""
    return _asked(stage) is not None


def _asked(stage: Any) -> Optional[Tuple[Handler, int]]:
    """That handler, and its place among the arguments where it was not given by name."""
    function, args, named = getattr(stage, "f", None), getattr(stage, "args", None), getattr(stage, "kw", None)
    if not callable(function) or not isinstance(args, tuple) or not isinstance(named, dict):
        return None
    takes, at = _handler_place(function)
    given = named.get("handler") if "handler" in named else args[at] if 0 <= at < len(args) else None
    if not takes or not callable(given) or isinstance(given, RecordedHandler) or not passes_over(given):
        return None
    return given, at


@lru_cache(maxsize=256)
def _handler_place(function: Callable[..., Any]) -> Tuple[bool, int]:
    """Whether ``function`` takes a handler; its place among the arguments after ``data``, -1 where it is taken by name alone."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False, -1
    for at, parameter in enumerate(parameters):
        if parameter.name == "handler":
            return True, at - 1 if parameter.kind is parameter.POSITIONAL_OR_KEYWORD else -1
    return False, -1
