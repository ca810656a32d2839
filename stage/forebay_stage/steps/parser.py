"""From the text of one ``--map`` to its step: a user's function (``module:function``) or a ready-made step (``name,key=value,…``)."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import Any

from forebay_proxy.core.errors import ConfigError
from forebay_stage.steps.checks import Sample, Step
from forebay_stage.steps.ready import clips, frames, min_side, require, resize

__all__ = ["step_of", "step_table"]

_READY: dict[str, Callable[..., Step]] = {make.__name__: make for make in (resize, min_side, frames, clips, require)}
_KINDS: dict[type, str] = {int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class NamedStep:
    """A step that knows the text it was made of, for messages."""

    text: str
    function: Step

    def __call__(self, sample: Sample) -> Sample | Iterable[Sample] | None:
        return self.function(sample)


def step_of(text: str) -> Step:
    """The step that ``text`` says. Raises ``ConfigError``, which tells what there is."""
    return NamedStep(text, _function(text) if ":" in text else _ready(text))


def step_table() -> list[tuple[str, str]]:
    """(name and options, what it does) of each ready-made step."""
    return [(_usage(name, make), (make.__doc__ or "").strip().splitlines()[0]) for name, make in _READY.items()]


def _function(text: str) -> Step:
    module, _, name = text.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # the last place: a file of the user's hides no library
    try:
        found = reduce(getattr, name.split("."), import_module(module))
    except Exception as error:  # importing runs the user's module, which may raise anything
        raise _no_step(text, f"it cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise _no_step(text, f"{name} is {type(found).__name__}, not a function of one sample")
    step: Step = found
    return step


def _ready(text: str) -> Step:
    name, *words = text.split(",")
    make = _READY.get(name)
    if make is None:
        raise _no_step(text, "there is no ready-made step of that name")
    plain = [word for word in words if "=" not in word]
    named: dict[str, str] = dict(word.split("=", 1) for word in words if "=" in word)
    signature = inspect.signature(make, eval_str=True)
    try:
        bound = signature.bind(*plain, **named)
        for option, value in bound.arguments.items():
            kind = signature.parameters[option].annotation
            if kind in _KINDS:
                bound.arguments[option] = _number(kind, option, value)
        return make(*bound.args, **bound.kwargs)
    except (TypeError, ValueError) as error:
        raise _no_step(text, f"{error}; it is written {_usage(name, make)}") from error


def _number(kind: type, option: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{option}={value} is not {_KINDS[kind]}") from None


def _usage(name: str, make: Callable[..., Step]) -> str:
    """``resize[,side=][,quality=]``, or ``require,FIELD,…``."""
    words = []
    for parameter in inspect.signature(make).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            words.append(f",{parameter.name.upper()},…")
        else:
            words.append(f",{parameter.name}=" if parameter.default is parameter.empty else f"[,{parameter.name}=]")
    return name + "".join(words)


def _no_step(text: str, why: str) -> ConfigError:
    listed = "; ".join(f"{usage}: {what}" for usage, what in step_table())
    return ConfigError(
        f"--map {text}: {why}",
        next_step=f"write module:function for a function of your own, or one of: {listed} For example: --map resize,side=256,quality=90",
    )
