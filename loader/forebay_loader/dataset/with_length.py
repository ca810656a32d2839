"""``with_length``, so that what it makes can be pickled: webdataset puts an object into a class that has no name to find it by."""

from __future__ import annotations

import copyreg
from functools import lru_cache
from typing import Any, TypeVar

__all__ = ["picklable_length", "with_length"]

T = TypeVar("T")


def with_length(made: T, n: int) -> T:
    """``made`` itself, which now says ``len(made) == n``. Nothing else about it changes."""
    made.size = n  # type: ignore[attr-defined]
    made.__class__ = _sized(_plain(type(made)))
    return made


def picklable_length(made: T) -> T:
    """``made``; if webdataset's ``with_length`` has been at it, changed in place so that it can be pickled."""
    plain = _plain(type(made))
    if plain is not type(made):
        made.__class__ = _sized(plain)
    return made


def _plain(cls: type) -> type:
    """``cls`` before ``with_length``, ours or webdataset's."""
    while cls.__name__.endswith("_Length") and cls.__qualname__ == cls.__name__ and "__len__" in vars(cls):
        cls = cls.__bases__[0]
    return cls


@lru_cache(maxsize=None)
def _sized(cls: type) -> type:
    return type(f"{cls.__name__}_Length", (cls,), {"__len__": _length, "__reduce_ex__": _reduce, "__module__": cls.__module__})


def _length(self: Any) -> int:
    return int(self.size)


def _reduce(self: Any, protocol: int) -> Any:
    """As an object of the plain class; unpickling gives it the sized class again."""
    plain = _plain(type(self))
    state = self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__
    return _rebuilt, (plain,), state


def _rebuilt(cls: type) -> Any:
    return copyreg.__newobj__(_sized(cls))  # type: ignore[attr-defined]
