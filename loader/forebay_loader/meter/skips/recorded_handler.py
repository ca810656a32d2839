"""Wraps a user's handler: its answers are obeyed as before, and in addition counted and listed.

The handler gets the original exception. webdataset passes no further context to handlers. So the place of the sample is read from the local
variables of the stage that caught the exception. No stage has to be rewritten, and a healthy sample costs nothing.
"""

from __future__ import annotations

import os
import sys
import threading
from inspect import CO_OPTIMIZED
from itertools import repeat
from typing import Any, Callable, Dict, Iterable, Iterator, Mapping, NamedTuple, Optional

from forebay_loader.base.errors import TooManySkips
from forebay_loader.base.shown_text import shown_message, shown_source
from forebay_loader.meter.skips.counts import Skip, Tally
from forebay_loader.meter.skips.skip_pass import SkipPass, lone_pass

__all__ = ["Handler", "NumberedSkips", "Place", "RecordedHandler", "asked", "note_stray", "passes_over", "recorded"]

Handler = Callable[[Exception], bool]

# webdataset's functions that ask handlers: stage, what a skip leaves out, and what the answer False means.
_KNOWN = {
    "url_opener": ("open", "shard", "stop"),
    "cached_url_opener": ("open", "shard", "stop"),
    "__call__": ("open", "shard", "stop"),  # of StreamingOpen and FileCache
    "tar_file_iterator": ("read", "file", "shard"),
    "tar_file_expander": ("read", "shard", "stop"),
    "group_by_keys": ("read", "file", "stop"),
    "_decode": ("decode", "sample", "stop"),
}
_ASKED = threading.local()  # .depth: number of wrapped handlers being asked; .stray: records answers of others
os.register_at_fork(after_in_child=lambda: vars(_ASKED).clear())  # a fork inside a handler: only the parent is asking
_VARIABLES = ("sample", "filesample", "url", "fname", "f")


class Place(NamedTuple):
    """What an exception is about. ``no``: what the answer False means: "stop", or "shard" for the rest of the shard."""

    stage: str
    what: str
    shard: Any = ""
    key: Any = ""
    function: str = ""
    no: str = "stop"


class RecordedHandler:
    """``handler`` in one stage of ``skips``. ``progress()`` returns how many items that stage has yielded so far."""

    def __init__(self, handler: Handler, skips: SkipPass, progress: Optional[Callable[[], int]] = None) -> None:
        self._handler = handler
        self._skips = skips
        self._progress = progress or skips.samples
        self._row, self._row_at = 0, -1

    def __repr__(self) -> str:
        return f"<recorded {self._handler!r}>"

    def __call__(self, error: Exception) -> bool:
        return self.at(error, None)

    def at(self, error: Exception, place: Optional[Place]) -> bool:
        """Ask the handler, and record a skip. Raises what the handler raises, and ``TooManySkips``, which is not passed to a handler."""
        frame = sys._getframe(2) if place is None else None
        try:
            if isinstance(error, TooManySkips):
                raise error
            _ASKED.depth = getattr(_ASKED, "depth", 0) + 1
            try:
                goes_on = self._handler(error)
            finally:
                _ASKED.depth -= 1
            self.note(error, place or _place_of(frame), goes_on=goes_on)
            return goes_on
        finally:
            del error, frame  # the traceback refers to this frame: a reference cycle would keep all frames alive

    def note(self, error: BaseException, place: Place, *, goes_on: bool = True, then: str = "") -> None:
        """Record that something is skipped because of ``error``. Raises ``TooManySkips``."""
        now = self._progress()
        self._row, self._row_at = (self._row + 1 if now == self._row_at else 1), now
        what = place.what if goes_on or place.no != "shard" else "shard"
        then = then or ("continue" if goes_on or place.no == "shard" else "stop")
        try:
            self._skips.add(_skip(error, place, what, then), self._row, error)
        finally:
            del error

    def told(self, error: Exception, place: Place) -> None:
        """List a fault that is not a skip."""
        self._skips.list(_skip(error, place, place.what, "told"))

    def counting(self, given: Iterable[Any]) -> Iterator[Any]:
        """Yield the output of the stage. Skips without an output between them are in a row."""
        tally = Tally()
        self._progress = tally.now
        return tally.counting(given)


def _skip(error: BaseException, place: Place, what: str, then: str) -> Skip:
    shard = _text(place.shard)
    said = shown_source(shard) if shard else ""
    return Skip(place.stage, what, said, _text(place.key), type(error).__name__, _message(error), place.function, then)


def recorded(handler: Handler, skips: SkipPass) -> RecordedHandler:
    """``handler``, wrapped unless it already is."""
    return handler if isinstance(handler, RecordedHandler) else RecordedHandler(handler, skips)


def asked(handler: Handler, error: Exception, place: Place) -> bool:
    """The answer of ``handler`` to ``error``. A wrapped one also gets the place."""
    try:
        return handler.at(error, place) if isinstance(handler, RecordedHandler) else handler(error)
    finally:
        del error


def passes_over(handler: Any) -> bool:
    """Whether ``handler`` may skip anything. webdataset's two ``reraise_exception`` never do."""
    stock = getattr(handler, "__name__", "") == "reraise_exception" and str(getattr(handler, "__module__", "")).startswith("webdataset.")
    return handler is not None and not stock


def note_stray(error: Exception, goes_on: bool, frame: Any) -> None:
    """Record the answer of one of webdataset's handlers that ``frame`` has asked, unless a wrapped handler asked it."""
    try:
        if getattr(_ASKED, "depth", 0) == 0 and not isinstance(error, TooManySkips):
            if getattr(_ASKED, "stray", (0,))[0] != os.getpid():
                _ASKED.stray = os.getpid(), RecordedHandler(lambda _: True, lone_pass())
            _ASKED.stray[1].note(error, _place_of(frame), goes_on=goes_on)
    finally:
        del error, frame


def _place_of(frame: Any) -> Place:
    """The place in the function that asks its handler. Never raises, though a user's stage may use the same variable names for anything."""
    try:
        return _told_by(frame)
    except Exception:
        return Place("map", "sample", function=frame.f_code.co_name)


def _told_by(frame: Any) -> Place:
    name = frame.f_code.co_name
    found = _variables(frame)
    if name == "tar_file_iterator":
        found.setdefault("url", _variables(frame.f_back).get("url", ""))
    decodes = type(found.get("f")).__name__ == "Decoder"
    stage, what, no = _KNOWN.get(name, ("decode" if decodes else "map", "sample", "stop"))
    sample = found.get("sample", found.get("filesample"))
    sample = sample if isinstance(sample, Mapping) else {}
    shard = found.get("url") or sample.get("__url__", "")
    key = sample.get("__key__") or found.get("fname") or sample.get("fname", "")
    return Place(stage, what, shard, key if what != "shard" else "", name.strip("_") if name != "__call__" else "open", no)


def _variables(frame: Any) -> Dict[str, Any]:
    if frame is None or not frame.f_code.co_flags & CO_OPTIMIZED:
        return {}
    found = frame.f_locals
    kept = {name: found[name] for name in _VARIABLES if name in found}
    if type(found) is dict:
        found.clear()  # before Python 3.13 the frame keeps this dict, and so the sample and the exception
    return kept


def _text(value: Any) -> str:
    """The text of ``value``; "" if there is none."""
    try:
        return str(value) if value else ""
    except Exception:  # a user's object: an array, for example, has no truth value
        return ""


def _message(error: BaseException) -> str:
    """The message of an error, without streams and URLs that webdataset adds to its arguments.

    If it has no text, as webdataset's ``DecodingError``, the message of its cause.
    """
    try:
        first = error.args[0] if len(error.args) > 1 and type(error).__str__ is BaseException.__str__ else error
        said = shown_message(str(first))
        why = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return said or (f"{type(why).__name__}: {_message(why)}" if why is not None else "")
    except Exception:  # a user's exception may fail here too
        return ""


class NumberedSkips:
    """Skips of samples that are requested by number. Each process counts its own, from its first sample on, with the limits of the
    environment.

    An unpickled copy starts at 0.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._asked: Iterator[None] = iter(())
        self._handler: Optional[RecordedHandler] = None

    def __getstate__(self) -> Dict[str, Any]:
        return {}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        NumberedSkips.__init__(self)

    def asked(self) -> None:
        """Count one more sample."""
        if self._pid != os.getpid():
            self._pid, skips = os.getpid(), lone_pass()
            self._asked, self._handler = skips.counting(repeat(None)), RecordedHandler(_raised, skips)
        next(self._asked)

    def replaced(self, error: Exception, place: Place) -> None:
        """Another sample replaces the one that was asked for. Raises ``TooManySkips``."""
        if self._handler is not None:
            self._handler.note(error, place, then="replaced")


def _raised(error: Exception) -> bool:
    raise error
