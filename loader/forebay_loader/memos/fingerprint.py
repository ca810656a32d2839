"""What a transform is, as far as it can be told honestly: its name, its own code, what it holds, the version of its distribution.

Its own code is what was compiled: a file may have been edited since. What it holds is what a closure, a partial, a bound object, defaults
and arguments hold now, and the numbers and texts of its module that its code names. Nothing is followed from there: an edit of a helper, of
a base class, of another module or of a file is not seen, and ``version=`` says it.
"""

from __future__ import annotations

import dis
import functools
import importlib.metadata
import json
import os
import sys
import sysconfig
import types
from hashlib import blake2b
from typing import Any, Dict, FrozenSet, Iterator, List, Optional, Tuple, Union

import numpy
import xxhash

from forebay_loader.memos.entry import KEY_BYTES, SAMPLE_BYTES
from forebay_loader.memos.errors import MemoRefused
from forebay_loader.memos.kept_value import taken_apart
from forebay_proxy.wire.protocol.version import VERSION

__all__ = ["fingerprint_of", "name_of"]

_BYTES = KEY_BYTES - SAMPLE_BYTES
_GIVE = "give fb.memo(…, version=…), a text or number that you change with the code"
_PLAIN = (type(None), bool, int, float, str, bytes)
_DATA = (list, tuple, dict, set, frozenset, numpy.ndarray, functools.partial)
_CACHED = type(functools.lru_cache(len))
_INSTALLED = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_MOST_BYTES = 64 << 20  # of arrays that a transform holds: they are looked at for each sample, some 10 GB a second


def fingerprint_of(transform: Any, version: Union[str, int, None] = None, more: Any = None) -> bytes:
    """The first bytes of the key of whatever ``transform`` makes as it is now; ``more`` counts as an argument. Some 50 us.

    With ``version`` its code does not count, and objects that cannot be compared count by their types; else they are refused:
    ``MemoRefused``.
    """
    told = None if version is None else str(version)
    printed = _Print(told)
    text = json.dumps([told, sys.version_info[:2], printed.of(transform), printed.of(more)])
    return blake2b(text.encode(), digest_size=_BYTES).digest()


def name_of(what: Any) -> str:
    """For people."""
    made = getattr(what, "func", None) or (getattr(what, "args", None) or [None])[0] or what
    return str(getattr(made, "__qualname__", None) or repr(made))[:200]


class _Print:
    """Makes plain values of a transform, for a digest."""

    def __init__(self, version: Optional[str]) -> None:
        self._version = version
        self._open: List[int] = []  # what is being looked at: it may hold itself
        self._bytes = 0

    def of(self, what: Any) -> Any:
        """Plain values. Raises ``MemoRefused``."""
        if type(what) in _PLAIN:
            return [type(what).__name__, repr(what)]
        if id(what) in self._open:
            return ["itself", self._open.index(id(what))]
        self._open.append(id(what))
        try:
            return self._parts(what, type(what))
        finally:
            self._open.pop()

    def _parts(self, what: Any, kind: Any) -> Any:  # noqa: PLR0911  # a kind each
        if hasattr(kind, "memo_print"):
            return [_full_name(kind), kind.memo_print(what, self.of)]
        if kind in (list, tuple):
            return [kind.__name__, [self.of(one) for one in what]]
        if kind in (set, frozenset):
            return [kind.__name__, sorted(json.dumps(self.of(one)) for one in what)]
        if kind is dict:
            return ["dict", [[self.of(name), self.of(one)] for name, one in what.items()]]
        if kind is types.MethodType:
            return ["method", self.of(what.__func__), self.of(what.__self__)]
        if kind is _CACHED:
            return ["cached", self.of(what.__wrapped__)]
        if kind is types.ModuleType:
            return ["module", what.__name__, _version_of(what.__name__)]
        if kind is types.FunctionType:
            return self._function(what)
        if isinstance(what, type):
            return self._class(what)
        try:
            kept = taken_apart(what)
        except MemoRefused:
            return self._object(what, kind)
        self._bytes += sum(one.nbytes for one in kept.arrays)
        if self._bytes <= _MOST_BYTES:
            return [
                kept.text.decode(),
                [xxhash.xxh3_128_hexdigest(one.reshape(-1).view("u1")) if one.nbytes else "" for one in kept.arrays],
            ]
        if self._version is None:
            raise MemoRefused(f"it holds arrays of more than {_MOST_BYTES >> 20} MiB, and all would be read again for each sample: {_GIVE}")
        return kept.text.decode()

    def _object(self, what: Any, kind: Any) -> Any:
        """By what it says to whoever would copy it; nothing is pickled."""
        try:
            made = what.__reduce_ex__(2)
        except Exception as error:  # of C, or a user's own
            if self._version is None:
                raise MemoRefused(f"a {_full_name(kind)} cannot be told from another by its values: {_GIVE}") from error
            return ["object", _full_name(kind)]
        if isinstance(made, str):
            return ["named", made, _full_name(what), _version_of(getattr(what, "__module__", None) or "")]
        function, arguments, state, items, pairs = (*made, None, None, None)[:5]
        if getattr(function, "__module__", "") == "copyreg":
            function, arguments = kind, arguments[1:]
        try:
            return ["object", [self.of(one) for one in (function, arguments, state, list(items or ()), list(pairs or ()))]]
        except MemoRefused as error:
            raise MemoRefused(f"a {_full_name(kind)} holds what cannot be told: {error}") from error

    def _function(self, what: types.FunctionType) -> Any:
        code, words = _compiled(what.__code__)
        named = {word: what.__globals__[word] for word in words if word in what.__globals__}
        constants = [[word, repr(one)] for word, one in sorted(named.items()) if not word.startswith("__") and _is_constant(one)]
        cells = [(word, cell) for word, cell in zip(what.__code__.co_freevars, what.__closure__ or ()) if _is_filled(cell)]  # noqa: B905
        try:
            held = [[word, self.of(cell.cell_contents)] for word, cell in cells]
            defaults = self.of([what.__defaults__, what.__kwdefaults__])
        except MemoRefused as error:
            raise MemoRefused(f"{_full_name(what)} holds what cannot be told: {error}") from error
        return ["function", *self._code(what, [code, constants]), held, defaults, self._own(what)]

    def _class(self, what: type) -> Any:
        if self._version is not None or _is_installed(what.__module__):
            return ["class", *self._code(what, [])]
        methods = [[word, self.of(one)] for word, held in sorted(vars(what).items()) for one in _functions(held)]
        return ["class", *self._code(what, [self._own(what), methods])]

    def _own(self, what: Any) -> Any:
        """The plain values, containers and classes that stand in a class, or are attributes of a function."""
        found = []
        for word, held in sorted(vars(what).items()):
            inner = isinstance(held, type) and held.__qualname__ == f"{what.__qualname__}.{word}"
            if word.startswith("__") or not (inner or _is_data(held)):
                continue
            try:
                found.append([word, self.of(held)])
            except MemoRefused:
                if self._bytes > _MOST_BYTES:
                    raise
                found.append([word, _full_name(type(held))])  # it holds a lock, or the like
        return found

    def _code(self, what: Any, code: Any) -> List[Any]:
        """``version`` stands in place of the code."""
        return [_full_name(what), _version_of(what.__module__ or ""), code if self._version is None else None]


def _full_name(what: Any) -> str:
    return f"{getattr(what, '__module__', '')}.{getattr(what, '__qualname__', getattr(what, '__name__', '?'))}"


def _functions(held: Any) -> Iterator[types.FunctionType]:
    """What stands behind a name of a class."""
    for one in (held, *(getattr(held, name, None) for name in ("__func__", "fget", "fset", "func", "__wrapped__"))):
        if isinstance(one, types.FunctionType):
            yield one


def _is_constant(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_constant, value)))


def _is_data(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return type(value) in (*_PLAIN, *_DATA) or (torch is not None and type(value) is torch.Tensor)


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # a name that was not given a value yet
        return False
    return True


@functools.lru_cache(maxsize=4096)
def _compiled(code: types.CodeType) -> Tuple[str, FrozenSet[str]]:
    """A digest without places in a file, for a line added above is no change; and the names that it reads and does not itself set."""
    words = set(code.co_names)
    words.difference_update(one.argval for one in dis.get_instructions(code) if one.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"))
    constants = []
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            inner, more = _compiled(one)
            constants.append(inner)
            words |= more
        else:
            constants.append(f"frozenset {sorted(map(repr, one))}" if isinstance(one, frozenset) else f"{type(one).__name__} {one!r}")
    told = (constants, code.co_names, code.co_varnames, code.co_freevars, code.co_flags, getattr(code, "co_exceptiontable", b"").hex())
    return blake2b(code.co_code + json.dumps(told).encode(), digest_size=16).hexdigest(), frozenset(words)


@functools.lru_cache(maxsize=4096)
def _is_installed(module: str) -> bool:
    """Whether the version of its distribution, or of Python, stands for its code."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return module in sys.builtin_module_names or (file is not None and os.path.abspath(file).startswith(_INSTALLED))


_VERSIONS: Dict[str, str] = {"forebay_loader": VERSION}


def _version_of(module: str) -> str:
    """Of the distribution that a module belongs to; "" where it belongs to none."""
    top = module.partition(".")[0]
    if top not in _VERSIONS:
        try:
            _VERSIONS[top] = importlib.metadata.version(top)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            _VERSIONS[top] = str(getattr(sys.modules.get(top), "__version__", ""))
    return _VERSIONS[top]
