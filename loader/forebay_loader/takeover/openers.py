"""Replaces webdataset's openers: shards that Forebay can fetch are announced to the sidecar ahead of time and read through it.

Nothing else about the openers changes. Handlers are called at the same places, and items come out as they went in. Local files, writing and
a user's own ``gopen_schemes`` work as before. They are neither announced nor counted. With a ``cache_dir``, samples still come from the
sidecar, and no copy is made there. ``fb.disable()`` undoes all of it.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from contextlib import contextmanager
from itertools import chain
from typing import Any, Callable, Iterable, Iterator, Optional

from forebay_loader.base.takeover_report import REPORT
from forebay_loader.base.timeouts import DEFAULT_LIMITS
from forebay_loader.identity.world import World
from forebay_loader.meter.skips import stock_stages
from forebay_loader.meter.stalls import install
from forebay_loader.plan.ahead import Ahead, passed_on
from forebay_loader.plan.known_lists import is_known_list, lists_shards
from forebay_loader.plan.plan_client import set_of
from forebay_loader.samples.open_sample import reraise
from forebay_loader.stream.webdataset_openers import (
    enable,
    enabled,
    gopen_module,
    left_command,
    open_source,
    refused,
    source_of,
    tell_unused,
)
from forebay_loader.takeover.tar_files import take_tars
from forebay_loader.videos import torch_video
from forebay_proxy.wire.commands.sources import Source

__all__ = ["ahead_of", "first_pull", "noted", "replace_openers", "why_direct"]

Opener = Callable[..., Iterator[Any]]
_NOTHING = object()


def replace_openers(module: Any) -> None:
    """Replace the openers of one module of webdataset, which has just been imported. A second call for the same module changes nothing."""
    install()  # now that torch is imported: webdataset imports it between its own modules
    if module.__name__ == "webdataset.gopen":
        enable()
        return
    if module.__name__ in ("webdataset.handlers", "webdataset.filters", "webdataset.pipeline"):
        stock_stages.take(module)
        stock_stages.take_early(module)
        return
    if module.__name__ == "webdataset.autodecode":
        torch_video.take(module)
        return
    for name, replaced in (("url_opener", _announcing), ("cached_url_opener", _uncached)):
        stock = getattr(module, name, None)
        # 0.2.86's cache module imports functions of another module; they are replaced in their own module.
        if stock is not None and stock.__module__ == module.__name__ and not hasattr(stock, "__wrapped__"):
            setattr(module, name, replaced(stock))
            if name == "cached_url_opener":
                module.cached_tarfile_to_samples = _telling(module.cached_tarfile_to_samples)
    for name in ("SimpleShardList", "ResampledShards"):
        kind = getattr(module, name, None)
        if kind is not None and kind.__module__ == module.__name__ and not hasattr(kind.__iter__, "__wrapped__"):
            kind.__iter__ = noted(kind.__iter__)
    for name, replaced in (("StreamingOpen", _announcing_method), ("FileCache", _uncached_method)):
        kind = getattr(module, name, None)
        if kind is not None and not hasattr(kind.__call__, "__wrapped__"):
            kind.__call__ = replaced(kind.__call__)  # in the class, so that pickles, subclasses and earlier imports use it too

    if module.__name__ == "webdataset.tariterators":
        take_tars(module)
    stock_stages.take(module)
    stock_stages.take_early(module)


def _announcing(stock: Opener) -> Opener:
    """Wrap ``url_opener(data, …)`` so that it announces ``data`` ahead. It opens shards by ``gopen``, which is replaced elsewhere."""

    @functools.wraps(stock)
    def url_opener(data: Iterable[Any], *args: Any, **options: Any) -> Iterator[Any]:
        return stock(_reading_ahead(data), *args, **options)

    return url_opener


def _announcing_method(stock: Opener) -> Opener:
    @functools.wraps(stock)
    def __call__(self: Any, urls: Iterable[Any]) -> Iterator[Any]:  # noqa: N807  # it becomes that method
        return stock(self, _reading_ahead(urls))

    return __call__


def _telling(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function that makes 0.2.86's stage with a ``cache_dir``: it logs that the folder is not used."""

    @functools.wraps(stock)
    def cached_tarfile_to_samples(*args: Any, **options: Any) -> Any:
        tell_unused()
        return stock(*args, **options)

    return cached_tarfile_to_samples


def _uncached(stock: Opener) -> Opener:
    """Wrap 0.2.86's opener with a ``cache_dir``: it makes no copy."""

    @functools.wraps(stock)
    def cached_url_opener(data: Iterable[Any], handler: Any = None, *args: Any, **options: Any) -> Iterator[Any]:
        told = _Told(handler or reraise)
        for sample in _reading_ahead(data):
            source = _source_of(sample)
            if source is None:
                yield from stock([sample], told, *args, **options)
            else:
                try:
                    stream = open_source(source, enabled() or DEFAULT_LIMITS)
                except Exception as error:
                    error.args = (*error.args, sample["url"])
                    told(error)
                else:
                    sample.update(stream=stream)
                    yield sample
            if told.to_stop:
                return

    return cached_url_opener


def _uncached_method(stock: Opener) -> Opener:
    """Wrap 1.x's ``FileCache``: it makes no copy.

    As in webdataset, the handler sees each failure, and reading goes on with the next shard whatever the handler returns.
    """

    @functools.wraps(stock)
    def __call__(self: Any, urls: Iterable[Any]) -> Iterator[Any]:  # noqa: N807  # it becomes that method
        tell_unused()
        for item in _reading_ahead(urls):
            source = _source_of(item)
            if source is None:
                yield from stock(self, [item])
                continue
            url = item["url"] if isinstance(item, dict) else item
            try:
                stream = open_source(source, enabled() or DEFAULT_LIMITS)
            except Exception as error:
                self.handler(error)
            else:
                yield {"url": url, "stream": stream}

    return __call__


class _Told:
    """A handler that remembers whether its last answer was to stop."""

    def __init__(self, handler: Callable[[Exception], bool]) -> None:
        self._handler = handler
        self.to_stop = False

    def __call__(self, error: Exception) -> bool:
        goes_on = self._handler(error)
        self.to_stop = not goes_on
        return goes_on


def _reading_ahead(urls: Iterable[Any]) -> Iterator[Any]:
    """Yield the same items, and report whether each goes through the sidecar. Announce them, unless an earlier
    Forebay stage has done so.
    """
    items = iter(urls)
    known = is_known_list(items)  # ask before the first item: a buffer may read a short list to its end for it
    before = passed_on()
    with first_pull() as begun:
        first = next(items, _NOTHING)
    if first is _NOTHING:
        return
    announced = passed_on() != before
    rest = chain([first], items)
    del first
    yield from _reported(rest if announced or enabled() is None else ahead_of(begun)(rest, known=known))


def _reported(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        why = why_direct(item)
        REPORT.direct(why) if why else REPORT.taken()
        yield item


def why_direct(item: Any) -> str:
    """Why ``item`` is not opened through the sidecar; "" if it is. The text names schemes and commands, never a
    URL, so it may be printed.
    """
    url = item.get("url") if isinstance(item, dict) else item
    if not isinstance(url, (str, os.PathLike)):
        return "not a URL"
    text = os.fspath(url)
    if enabled() is None:
        return "fb.disable() was called"
    try:
        if isinstance(text, str) and source_of(text) is not None:
            return ""
    except Exception:
        return "a URL that Forebay does not understand"
    return _reason(str(text))


def _reason(text: str) -> str:
    scheme = text.partition(":")[0].lower() if ":" in text else ""
    if not scheme.isalnum() or scheme == "file":
        return "local files"
    found = gopen_module().gopen_schemes.get(scheme)
    if found is not None and getattr(found, "__module__", "") not in ("webdataset.gopen", "forebay_loader.stream.webdataset_openers"):
        return f"the script has its own opener for {scheme}"
    if unserved := refused(text):
        return f"the sidecar does not serve {unserved} shards"
    if scheme == "pipe":
        return left_command(text)
    return "hf buckets are not read" if text.startswith("hf://buckets/") else f"Forebay does not read {scheme} shards"


def _source_of(item: Any) -> Optional[Source]:
    """The source that Forebay would fetch for ``item``; None if webdataset opens it, or raises the error for an item that is no URL."""
    if enabled() is None:
        return None
    try:
        return source_of(item["url"] if isinstance(item, dict) else item)
    except Exception:
        return None


_PULLS = threading.local()  # .begun: the lists that started during the present first_pull
_STAGES: weakref.WeakKeyDictionary[Any, Ahead] = weakref.WeakKeyDictionary()  # one for each list: it counts the passes over it


def noted(stock: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Wrap a shard list's ``__iter__``: it is recorded when its first item is taken."""

    @functools.wraps(stock)
    @lists_shards
    def __iter__(self: Any) -> Iterator[Any]:  # noqa: N807  # it becomes that method
        begun = getattr(_PULLS, "begun", None)
        if begun is not None:
            begun.append(self)
        yield from stock(self)

    return __iter__


@contextmanager
def first_pull() -> Iterator[list[Any]]:
    """Collect the shard lists whose iteration starts in this thread, inside the ``with`` block."""
    outer, begun = getattr(_PULLS, "begun", None), list[Any]()
    _PULLS.begun = begun
    try:
        yield begun
    finally:
        _PULLS.begun = outer


def ahead_of(begun: list[Any]) -> Ahead:
    """The ``Ahead`` that announces a pass over the one list that has started. With no list or several, the set of shards is not known."""
    if len(begun) != 1:
        return Ahead(world=World())
    (source,) = begun
    found = _STAGES.get(source)
    if found is None:
        found = _STAGES[source] = Ahead(set=set_of(getattr(source, "urls", None)), world=World())
    return found
