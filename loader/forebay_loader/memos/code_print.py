"""What a function does, as far as its code tells: its source, its compiled code, and what it refers to.

The source alone would not do: a file that was edited after it was imported has another source than the code that runs. Of what is referred
to, functions and classes of the user's own count with their sources, plain values of a module with their values, and what is installed
with the version of its package. What this does not see: a module's value that is changed later, a file that the function reads, and what
functions of another own module call in turn beyond that module's source.
"""

from __future__ import annotations

import builtins
import functools
import importlib.metadata
import inspect
import logging
import os
import sys
import sysconfig
import types
from hashlib import blake2b
from typing import Any, Dict, Iterator, List, Optional

from forebay_loader.memos.errors import MemoRefused
from forebay_loader.memos.kept_value import taken_apart

__all__ = ["CodePrint"]

_GIVE = "give fb.memo(…, version=…), a text or number that you change with the code"
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class CodePrint:
    """Makes plain values of a transform, for a digest. ``version`` stands for all of its code."""

    def __init__(self, version: Optional[str]) -> None:
        self._version = version
        self._met: Dict[int, Any] = {}  # by identity: keeps what was met alive

    def of(self, what: Any) -> Any:
        """Plain values. Raises ``MemoRefused`` for what has no source and for what is no plain value."""
        if id(what) in self._met:
            return ["met before", list(self._met).index(id(what))]
        told = getattr(what, "memo_print", None)
        if callable(told):
            return [_name(type(what)), told(self.of)]
        if isinstance(what, functools.partial):
            return ["partial", self.of(what.func), self._all(what.args), self._all(what.keywords)]
        if isinstance(what, types.MethodType):
            return ["method", self.of(what.__func__), self.of(what.__self__)]
        if isinstance(what, (types.FunctionType, type, types.ModuleType, types.BuiltinFunctionType)):
            self._met[id(what)] = what
            return self._code(what)
        return self._value(what)

    def _all(self, values: Any) -> Any:
        if isinstance(values, dict):
            return [[name, self.of(one)] for name, one in sorted(values.items())]
        return [self.of(one) for one in values]

    def _value(self, what: Any) -> Any:
        kind = type(what)
        if kind in (list, tuple):
            return [kind.__name__, self._all(what)]
        if kind in (set, frozenset):
            return [kind.__name__, sorted(repr(self.of(one)) for one in what)]
        if kind is dict and all(type(name) is str for name in what):
            return ["dict", [[name, self.of(one)] for name, one in what.items()]]
        try:
            kept = taken_apart(what)
        except MemoRefused:
            return self._object(what)
        return ["value", kept.text.decode(), [blake2b(one.tobytes(), digest_size=16).hexdigest() for one in kept.arrays]]

    def _object(self, what: Any) -> Any:
        kind = type(what)
        if self._version is not None:
            return ["object", _name(kind)]
        if isinstance(what, logging.Logger):
            return "logger"  # what it does is not of what is made
        if callable(getattr(what, "f", None)) and hasattr(what, "args") and hasattr(what, "kw"):  # a stage of webdataset's
            return ["stage", self.of(what.f), self._all(what.args), self._all(what.kw)]
        state = getattr(what, "__dict__", None)
        if state is None or kind.__module__ == "builtins" or _version_of(kind.__module__):
            raise MemoRefused(f"a {_name(kind)} cannot be told from another by its values: {_GIVE}")
        self._met[id(what)] = what
        return ["object", self.of(kind), self._all(state)]

    def _code(self, what: Any) -> Any:
        name = _name(what)
        module = what.__name__ if isinstance(what, types.ModuleType) else getattr(what, "__module__", None) or ""
        installed = _version_of(module)
        if installed:
            return [name, installed]
        if self._version is not None:
            return [name, self._captured(what)] if isinstance(what, types.FunctionType) else name
        if isinstance(what, types.FunctionType):
            around = [[word, self._named(name, word, what.__globals__[word])] for word in _words(what.__code__) if word in what.__globals__]
            return [name, _source(what, name), _compiled(what.__code__), self._captured(what), around]
        return [name, _source(what, name)]

    def _captured(self, function: types.FunctionType) -> Any:
        names = function.__code__.co_freevars
        cells = zip(names, function.__closure__ or ())  # noqa: B905  # strict= is not of 3.9
        return [
            [[word, self._named(function.__qualname__, word, cell.cell_contents)] for word, cell in cells if _is_filled(cell)],
            self._all(function.__defaults__ or ()),
            self._all(function.__kwdefaults__ or {}),
        ]

    def _named(self, name: str, word: str, value: Any) -> Any:
        try:
            return self.of(value)
        except MemoRefused as error:
            raise MemoRefused(f"{name} uses {word!r}, and {error}" if _GIVE in str(error) else f"{name} uses {word!r}: {error}") from error


def _name(what: Any) -> str:
    return f"{getattr(what, '__module__', '')}.{getattr(what, '__qualname__', getattr(what, '__name__', '?'))}"


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # a name that was not given a value yet
        return False
    return True


def _source(what: Any, name: str) -> str:
    try:
        text = inspect.getsource(what)
    except (OSError, TypeError):
        raise MemoRefused(
            f"the source of {name} cannot be had, so nobody could tell when it changes (a lambda, or code without a file?): {_GIVE}"
        ) from None
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _compiled(code: types.CodeType) -> List[Any]:
    """Without places in a file: a line added above a function is no change of it."""
    constants = [_compiled(one) if isinstance(one, types.CodeType) else _constant(one) for one in code.co_consts]
    return [code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames)]


def _constant(value: Any) -> str:
    return f"frozenset {sorted(map(repr, value))}" if isinstance(value, frozenset) else f"{type(value).__name__} {value!r}"


def _words(code: types.CodeType) -> Iterator[str]:
    found = {word for one in _codes(code) for word in one.co_names if not hasattr(builtins, word)}
    yield from sorted(found)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)


@functools.lru_cache(maxsize=1024)
def _version_of(module: str) -> str:
    """Of the package that an installed module belongs to, or of Python; "" of the user's own."""
    top = module.partition(".")[0]
    if top in sys.builtin_module_names or top in getattr(sys, "stdlib_module_names", ()) or top == "builtins":
        return f"Python {sys.version_info[0]}.{sys.version_info[1]}" if top != "__main__" else ""
    file = getattr(sys.modules.get(module) or sys.modules.get(top), "__file__", None)
    if file is None or not os.path.abspath(file).startswith(tuple(f"{one}{os.sep}" for one in _INSTALLED)):
        return ""
    try:
        return f"{top} {importlib.metadata.version(top)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{top} {getattr(sys.modules.get(top), '__version__', 'installed')}"
