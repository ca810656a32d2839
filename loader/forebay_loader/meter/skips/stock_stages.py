"""Handlers in pipelines of webdataset's own making, recorded there too: what ``fb.enable()`` and the takeover put in its classes' place.

A stage is asked when its pipeline is put together, so what it is given is looked at once a pass and nothing of it changes. ``take``
replaces two methods and the two openers in their classes: names imported before, pickles and subclasses all lead there. ``take_early``
also replaces functions by name, which only who comes before anybody has imported them may do: a pickled function must be the one that
its module has.
"""

from __future__ import annotations

import copy
import functools
import sys
from typing import Any, Callable, Dict, List, Tuple

from forebay_loader.meter.skips.recorded_handler import note_stray, passes_over, recorded
from forebay_loader.meter.skips.skip_pass import SkipPass, current, making
from forebay_loader.meter.skips.skip_watch import lone_pass
from forebay_loader.meter.skips.stage_handlers import has_handler, recorded_stage

__all__ = ["give_back", "put_in_place", "take", "take_early"]

_OPENS = ("url_opener", "cached_url_opener", "tar_file_expander")  # what they give is no sample yet
_GIVES_SAMPLES = ("tarfile_samples", "cached_tarfile_samples", "group_by_keys")
_HANDLERS = ("ignore_and_continue", "warn_and_continue", "ignore_and_stop", "warn_and_stop")
_MODULES = ("webdataset.filters", "webdataset.pipeline", "webdataset.cache")
_OURS = "_forebay_skips"
_REPLACED: List[Tuple[Any, str, Any, Any]] = []  # class, name, webdataset's own, ours; none: not enabled


def put_in_place() -> None:
    """Replace what is imported; what is not yet is left to ``take``."""
    for name in _MODULES:
        if name in sys.modules:
            take(sys.modules[name])


def give_back() -> None:
    """Let webdataset have its own again."""
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
    """Replace the functions of one module of webdataset that has just been imported, for the stages that users wrote."""
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
    """Whether another module of webdataset's has the function already: what that pickles must stay what ``by`` has."""
    others = [module for key, module in list(sys.modules.items()) if key.startswith("webdataset") and module is not by]
    return any(vars(module).get(name) is stock for module in others if module is not None)


def _stage(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def __call__(self: Any, data: Any) -> Any:  # noqa: N807  # it becomes that method
        if not _REPLACED:
            return stock(self, data)
        skips = current()
        name = getattr(self.f, "__name__", "")
        if skips is not None and not skips.stages.samples and skips.stages.reads and name not in (*_OPENS, *_GIVES_SAMPLES):
            data = skips.counting(data)  # of a reader that a user wrote
        if skips is not None and skips.behind and not skips.stages.samples and has_handler(self):
            data = skips.counting(data)  # that a loader gave
        made = recorded_stage(self, data, skips or lone_pass())
        made = stock(self, data) if made is None else made
        return made if skips is None else _read(made, name, skips)

    return __call__


def _pass(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def iterator1(self: Any) -> Any:
        if not _REPLACED or current() is not None:  # the latter: fb.WebDataset's own
            return stock(self)
        skips = lone_pass(behind=_is_loader(self))
        with making(skips):
            source = stock(self)
        if not skips.stages.reads and not skips.stages.samples:
            return source
        return skips.until_end(source if skips.stages.samples else skips.counting(source))

    return iterator1


def _is_loader(pipeline: Any) -> bool:
    """Whether its stages take what a ``DataLoader`` gives: webdataset's ``WebLoader``."""
    first = next(iter(getattr(pipeline, "pipeline", ())), None)
    return hasattr(first, "dataset") and hasattr(first, "num_workers")


def _opener(stock: Callable[..., Any]) -> Callable[..., Any]:
    def __call__(self: Any, urls: Any) -> Any:  # noqa: N807  # it becomes that method; __wrapped__ says that the takeover's is below
        if not _REPLACED:
            return stock(self, urls)
        skips = current() or lone_pass()
        skips.stages.reads = True
        asked = self
        if passes_over(getattr(self, "handler", None)):
            asked = copy.copy(self)
            asked.handler = recorded(self.handler, skips)
        return skips.opening(stock(asked, urls))

    return functools.update_wrapper(__call__, stock) if hasattr(stock, "__wrapped__") else __call__


def _reading(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A function that opens or reads shards, called by a stage that a user wrote."""

    @functools.wraps(stock)
    def reading(data: Any, *args: Any, **how: Any) -> Any:
        if not _REPLACED:
            return stock(data, *args, **how)
        skips = current()
        call = _Call(stock, args, how)
        made = recorded_stage(call, data, skips or lone_pass())
        made = stock(data, *args, **how) if made is None else made
        if skips is None:
            return made
        return skips.opening(made) if stock.__name__ == "url_opener" else _read(made, stock.__name__, skips)

    return reading


class _Call:
    """A function of webdataset's and what it was given, as its ``FilterFunction`` has them."""

    def __init__(self, f: Callable[..., Any], args: "Tuple[Any, ...]", kw: "Dict[str, Any]") -> None:
        self.f, self.args, self.kw = f, args, kw


def _read(made: Any, name: str, skips: SkipPass) -> Any:
    """What stage ``name`` gives, counted where these are the first samples."""
    skips.stages.reads = skips.stages.reads or name in _OPENS or name in _GIVES_SAMPLES
    return skips.counting(made) if name in _GIVES_SAMPLES and not skips.stages.samples else made


def _told(stock: Callable[[Exception], bool]) -> Callable[[Exception], bool]:
    """A handler of webdataset's that a stage of a user's own asks by itself."""

    @functools.wraps(stock)
    def handler(exn: Exception) -> bool:
        goes_on = stock(exn)
        if not _REPLACED:
            return goes_on
        note_stray(exn, goes_on, sys._getframe(1))
        return goes_on

    return handler
