"""Handlers of webdataset's own stages, found among the arguments that a stage was given, and recorded."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any, Callable, Iterator, Optional, Tuple

from forebay_loader.meter.skips.recorded_handler import RecordedHandler, passes_over
from forebay_loader.meter.skips.skip_pass import SkipPass

__all__ = ["recorded_stage"]


def recorded_stage(stage: Any, data: Any, skips: SkipPass) -> Optional[Iterator[Any]]:
    """What ``stage`` makes of ``data``, its handler recorded; None where it has none that passes anything over.

    ``stage`` is a ``FilterFunction`` of webdataset's: a function of ``data`` with the arguments it was given.
    """
    found = getattr(stage, "f", None), getattr(stage, "args", None), getattr(stage, "kw", None)
    function, args, named = found
    if not callable(function) or not isinstance(args, tuple) or not isinstance(named, dict):
        return None
    takes, at = _handler_place(function)
    given = named.get("handler") if "handler" in named else args[at] if 0 <= at < len(args) else None
    if not takes or not callable(given) or isinstance(given, RecordedHandler) or not passes_over(given):
        return None
    handler = RecordedHandler(given, skips)
    if "handler" in named:
        named = {**named, "handler": handler}
    else:
        args = (*args[:at], handler, *args[at + 1 :])
    return handler.counting(function(data, *args, **named))


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
