"""Samplers as text, for TOML files and command lines: ``uniform(8)``, ``time_warp(fps(4, 16, start_s="random"))``.

The text is Python's grammar and nothing of it is run: its tree is walked, and but for calls of the names below, numbers, quoted words, None
and tables it may hold nothing.
"""

from __future__ import annotations

import ast
from typing import Any, Callable, Mapping, Union

from forebay_loader.videos.sampling.adaptive import adaptive
from forebay_loader.videos.sampling.augmentations import frame_drop, time_warp
from forebay_loader.videos.sampling.phases import by_epoch
from forebay_loader.videos.sampling.sampler import Sampler
from forebay_loader.videos.sampling.samplers import clip, clips, fps, keyframes, uniform

__all__ = ["sampler_of"]

_NAMES: dict[str, Callable[..., Any]] = {
    made.__name__: made for made in (adaptive, by_epoch, clip, clips, fps, frame_drop, keyframes, time_warp, uniform)
}
_LONGEST = 2000  # characters; deeper nesting than fits is nobody's sampler, and costs the parser its stack


def sampler_of(value: Union[str, Mapping[Any, Any], Sampler]) -> Sampler:
    """The sampler that ``value`` says.

    - ``value``: a text such as ``uniform(8)``; a table of epochs, ``{"0": "uniform(8)", "10": "keyframes(8)"}``, as TOML has it; or a
      sampler, which is returned.

    Raises ``ValueError`` for a text that is none, naming what of it is wrong, and ``TypeError`` for a value of another kind.
    """
    if isinstance(value, str):
        return _said(value)
    if isinstance(value, Mapping):
        return by_epoch({_epoch(epoch): sampler_of(one) for epoch, one in value.items()})
    if callable(value):
        return value
    raise TypeError(f"a sampler is text such as 'uniform(8)', a table of epochs, or a callable; got {value!r}")


def _said(text: str) -> Sampler:
    if len(text) > _LONGEST:
        raise ValueError(f"a sampler's text has at most {_LONGEST} characters; this one has {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is no sampler such as uniform(8): {error}") from error
    if not isinstance(tree, ast.Call):
        raise ValueError(f"{text!r} is no sampler such as uniform(8)")
    found: Sampler = _value(tree, text)
    return found


def _value(node: ast.AST, text: str) -> Any:
    if isinstance(node, ast.Constant) and (node.value is None or type(node.value) in (int, float, str)):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        number = _value(node.operand, text)
        if isinstance(number, (int, float)):
            return -number
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        return {_value(key, text): _value(one, text) for key, one in zip(node.keys, node.values) if key}  # noqa: B905
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _made(node, node.func.id, text)
    raise ValueError(f"{text!r}: nothing but samplers, numbers, quoted words and tables of epochs may stand in it")


def _made(node: ast.Call, name: str, text: str) -> Any:
    if name not in _NAMES:
        raise ValueError(f"{text!r}: {name} is no sampler; they are {', '.join(sorted(_NAMES))}")
    arguments = [_value(argument, text) for argument in node.args]
    named = {word.arg: _value(word.value, text) for word in node.keywords if word.arg}
    if len(named) < len(node.keywords):
        raise ValueError(f"{text!r}: ** stands for nothing here")
    try:
        return _NAMES[name](*arguments, **named)
    except TypeError as error:
        raise ValueError(f"{text!r}: {error}") from error


def _epoch(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    if isinstance(value, int):
        return value
    raise ValueError(f"epochs are whole numbers; got {value!r}")
