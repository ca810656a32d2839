"""Records skips also in pipelines of webdataset's own classes. ``fb.enable()`` and the takeover install this.

A stage's handler is wrapped when its pipeline is built, once a pass; the stage itself does not change. ``take`` replaces two methods and
the two openers in their classes. So it also works for names imported before, pickles and subclasses. ``take_early`` also replaces functions
by name. That is only possible before anybody has imported them, since a pickled function must be the one in its module.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Callable, Iterator, List, Optional, Tuple

from forebay_loader.meter.skips.recorded_handler import Handler, RecordedHandler, note_stray, passes_over, recorded
from forebay_loader.meter.skips.skip_pass import SkipPass, current, lone_pass, making

__all__ = ["give_back", "handler_of", "has_handler", "put_in_place", "recorded_stage", "take", "take_early"]

_OPENS = ("url_opener", "cached_url_opener", "tar_file_expander")  # their outputs are not samples yet
_GIVES_SAMPLES = ("tarfile_samples", "cached_tarfile_samples", "group_by_keys")
_HANDLERS = ("ignore_and_continue", "warn_and_continue", "ignore_and_stop", "warn_and_stop")
_MODULES = ("webdataset.filters", "webdataset.pipeline", "webdataset.cache")
_OURS = "_forebay_skips"
_REPLACED: List[Tuple[Any, str, Any, Any]] = []  # class, name, webdataset's own, ours; empty: not enabled


def put_in_place() -> None:
    """Replace what is imported already. ``take`` does the rest later."""
    for name in _MODULES:
        if name in sys.modules:
            take(sys.modules[name])


def give_back() -> None:
    """Restore webdataset's own methods."""
    while _REPLACED:
        kind, name, stock, ours = _REPLACED.pop()
        if kind.__dict__.get(name) is ours:
            setattr(kind, name, stock)


def take(module: Any) -> None:
    """Replace the methods of one module of webdataset."""
    for kind_name, name, replaced in (
        ("FilterFunction", "__call__", _stage),
        ("DataPipeline", "iterator1", _pass),
        ("StreamingOpen", "__call__", _opener),
        ("FileCache", "__call__", _opener),
    ):
        kind = getattr(module, kind_name, None)
        if kind is None or kind.__module__ != module.__name__ or any((kind, name) == taken[:2] for taken in _REPLACED):
            continue
        stock = kind.__dict__[name]
        ours = replaced(stock)
        setattr(kind, name, ours)
        _REPLACED.append((kind, name, stock, ours))


def take_early(module: Any) -> None:
    """Replace the functions of one module of webdataset that has just been imported, for stages that users wrote."""
    if module.__name__ == "webdataset.handlers":
        _replace(module, _HANDLERS, _told)
    elif module.__name__ == "webdataset.tariterators":
        _replace(module, ("url_opener", "tar_file_expander", "group_by_keys"), _reading)


def _replace(module: Any, names: "Tuple[str, ...]", replaced: Callable[..., Any]) -> None:
    for name in names:
        stock = getattr(module, name)
        if not hasattr(stock, _OURS) and not _is_held(stock, name, module):
            ours = replaced(stock)
            setattr(ours, _OURS, True)
            setattr(module, name, ours)


def _is_held(stock: Any, name: str, by: Any) -> bool:
    """Whether another module of webdataset has imported the function: then its pickles must stay valid."""
    others = [module for key, module in list(sys.modules.items()) if key.startswith("webdataset") and module is not by]
    return any(vars(module).get(name) is stock for module in others if module is not None)


def _stage(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def __call__(self: Any, data: Any) -> Any:  # noqa: N807  # it becomes that method
        if not _REPLACED:
            return stock(self, data)
        skips = current()
        name = getattr(self.f, "__name__", "")
        if skips is not None and not skips.counts_samples and skips.reads and name not in (*_OPENS, *_GIVES_SAMPLES):
            data = skips.counting(data)  # the output of a user's own reader
        if skips is not None and skips.behind and not skips.counts_samples and has_handler(self):
            data = skips.counting(data)  # the output of a loader
        made = recorded_stage(self, data, skips or lone_pass())
        made = stock(self, data) if made is None else made
        return made if skips is None else _read(made, name, skips)

    return __call__


def _pass(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def iterator1(self: Any) -> Any:
        if not _REPLACED or current() is not None:  # in the second case fb.WebDataset records itself
            return stock(self)
        skips = lone_pass(behind=_is_loader(self))
        with making(skips):
            source = stock(self)
        if not skips.reads and not skips.counts_samples:
            return source
        return skips.until_end(source if skips.counts_samples else skips.counting(source))

    return iterator1


def _is_loader(pipeline: Any) -> bool:
    """Whether its stages get the output of a ``DataLoader``: a ``WebLoader``, or a pipeline that starts with one."""
    first = next(iter(getattr(pipeline, "pipeline", ())), None)
    return first is not None and ((hasattr(first, "dataset") and hasattr(first, "num_workers")) or _is_loader(first))


def _opener(stock: Callable[..., Any]) -> Callable[..., Any]:
    def __call__(self: Any, urls: Any) -> Any:  # noqa: N807  # it becomes that method; __wrapped__ says that the takeover's is below
        if not _REPLACED:
            return stock(self, urls)
        skips = current() or lone_pass()
        skips.reads = True
        asked = self
        if passes_over(getattr(self, "handler", None)):
            asked = copy.copy(self)
            asked.handler = recorded(self.handler, skips)
        return skips.opening(stock(asked, urls))

    return functools.update_wrapper(__call__, stock) if hasattr(stock, "__wrapped__") else __call__


def _reading(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that opens or reads shards, for calls by a user's own stage."""

    @functools.wraps(stock)
    def reading(data: Any, *args: Any, **how: Any) -> Any:
        if not _REPLACED:
            return stock(data, *args, **how)
        skips = current()
        called = SimpleNamespace(f=stock, args=args, kw=how)  # as webdataset's FilterFunction has them
        made = recorded_stage(called, data, skips or lone_pass())
        made = stock(data, *args, **how) if made is None else made
        if skips is None:
            return made
        return skips.opening(made) if stock.__name__ == "url_opener" else _read(made, stock.__name__, skips)

    return reading


def _read(made: Any, name: str, skips: SkipPass) -> Any:
    """The output of stage ``name``, counted if these are the first samples."""
    skips.reads = skips.reads or name in _OPENS or name in _GIVES_SAMPLES
    return skips.counting(made) if name in _GIVES_SAMPLES and not skips.counts_samples else made


def _told(stock: Callable[[Exception], bool]) -> Callable[[Exception], bool]:
    """Wrap a handler of webdataset's, for calls by a user's own stage."""

    @functools.wraps(stock)
    def handler(exn: Exception) -> bool:
        goes_on = stock(exn)
        if not _REPLACED:
            return goes_on
        note_stray(exn, goes_on, sys._getframe(1))
        return goes_on

    return handler


def recorded_stage(stage: Any, data: Any, skips: SkipPass) -> Optional[Iterator[Any]]:
    """The output of ``stage`` for ``data``, with its handler wrapped; None if it has no handler that may skip anything.

    ``stage`` is a ``FilterFunction`` of webdataset: a function of ``data`` with its other arguments.
    """
    found = _asked(stage)
    if found is None:
        return None
    given, at = found
    handler = RecordedHandler(given, skips)
    if "handler" in stage.kw:
        return handler.counting(stage.f(data, *stage.args, **{**stage.kw, "handler": handler}))
    return handler.counting(stage.f(data, *stage.args[:at], handler, *stage.args[at + 1 :], **stage.kw))


def handler_of(stage: Any) -> Optional[Handler]:
    """The handler of ``stage``, webdataset's or Forebay's; None if it has none that may skip anything."""
    found = _asked(stage)
    given = getattr(stage, "handler", None) if found is None else found[0]
    return given if passes_over(given) else None


def has_handler(stage: Any) -> bool:
    """Whether ``stage`` has a handler that may skip something and is not wrapped yet."""
    return _asked(stage) is not None


def _asked(stage: Any) -> Optional[Tuple[Handler, int]]:
    """That handler, and its position among the arguments if it was not given by name."""
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
    """Whether ``function`` takes a handler, and its position after ``data``; -1 if it is keyword-only."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False, -1
    for at, parameter in enumerate(parameters):
        if parameter.name == "handler":
            return True, at - 1 if parameter.kind is parameter.POSITIONAL_OR_KEYWORD else -1
    return False, -1
