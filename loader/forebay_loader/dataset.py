"""``wds.WebDataset`` with its opener stage replaced, and the same opener as a stage for any pipeline.

webdataset 1.x opens in a stage of its own (``cache.StreamingOpen``, or ``cache.FileCache`` with a cache directory), 0.2.86 inside
``tarfile_to_samples``; both become ``Opening`` here, followed by webdataset's own tar reading.
"""

from __future__ import annotations

import importlib
import inspect
import os
from typing import Any, Callable, Iterable, Iterator, Optional

from forebay_loader.ahead import Ahead
from forebay_loader.limits import DEFAULT_LIMITS, Limits
from forebay_loader.notices import notice_once
from forebay_loader.openers import gopen_module, open_source, source_of
from forebay_loader.reader import ensure_job
from forebay_loader.subject import set_of

__all__ = ["Opening", "TarSamples", "WebDataset", "tarfile_to_samples"]

Handler = Callable[[Exception], bool]
_CACHE_NOTICE = "cache_dir is not used: the sidecar keeps the one copy of a shard on this node, bounded and shared by all workers"


def WebDataset(  # noqa: N802  # stands where wds.WebDataset stood
    urls: Any, *args: Any, ahead: Optional[int] = None, epoch: Any = None, limits: Limits = DEFAULT_LIMITS, **kwargs: Any
) -> Any:
    """``wds.WebDataset(urls, …)`` whose shards come through the sidecar; every argument as there, an instance of that class.

    ``ahead`` is the number of coming shards to announce (``FOREBAY_AHEAD`` or 16), ``epoch`` as in ``fb.ahead``; the set is what ``urls``
    stands for. ``cache_dir`` is dropped with one notice: it would be a second copy. Samples keep the original ``__url__``.
    """
    ensure_job()
    webdataset = importlib.import_module("webdataset")
    bound = inspect.signature(webdataset.WebDataset.__init__).bind(None, urls, *args, **kwargs)
    if bound.arguments.get("cache_dir") is not None:
        bound.arguments["cache_dir"] = None
        notice_once("cache_dir", _CACHE_NOTICE)
    made = webdataset.WebDataset(*bound.args[1:], **bound.kwargs)
    reading = Ahead(ahead, set=set_of(urls), epoch=epoch)
    made.pipeline = [ours for stage in made.pipeline for ours in _replaced(stage, reading, limits)]
    return made


def tarfile_to_samples(
    handler: Optional[Handler] = None,
    *,
    select_files: Optional[Callable[[str], bool]] = None,
    rename_files: Optional[Callable[[str], str]] = None,
    ahead: Optional[int] = None,
    set: Optional[str] = None,
    epoch: Any = None,
    limits: Limits = DEFAULT_LIMITS,
) -> TarSamples:
    """``wds.tarfile_to_samples(…)`` for a ``wds.DataPipeline``: shards come through the sidecar and are announced ahead.

    ``ahead``, ``set`` and ``epoch`` as in ``fb.ahead``.
    """
    ensure_job()
    return TarSamples(
        Opening(handler, Ahead(ahead, set=set, epoch=epoch), limits), {"select_files": select_files, "rename_files": rename_files}
    )


class Opening:
    """The stage that turns URLs into open streams. ``handler`` decides what an exception means, as in webdataset; None raises it."""

    def __init__(self, handler: Optional[Handler], ahead: Ahead, limits: Limits) -> None:
        self.handler = handler
        self._ahead = ahead
        self._limits = limits

    def __call__(self, data: Iterable[Any]) -> Iterator[dict[str, Any]]:
        for item in self._ahead(data):
            try:
                opened = self._open(item)
            except Exception as error:
                if self.handler is None or not self.handler(error):
                    if self.handler is None:
                        raise
                    break
                continue
            yield opened

    def _open(self, item: Any) -> dict[str, Any]:
        sample = item if isinstance(item, dict) else {"url": item}
        source = source_of(sample["url"])
        if source is None:
            return _stock_open(sample)
        return {**sample, "stream": open_source(source, self._limits)}


class TarSamples:
    """``Opening``, then webdataset's tar reading and grouping by key. ``handler`` serves all three."""

    def __init__(self, opening: Opening, files: dict[str, Any]) -> None:
        self._opening = opening
        self._files = files

    def __call__(self, data: Iterable[Any]) -> Iterator[dict[str, Any]]:
        tariterators = importlib.import_module("webdataset.tariterators")
        handling = {} if self._opening.handler is None else {"handler": self._opening.handler}
        files = tariterators.tar_file_expander(self._opening(data), **handling, **self._files)
        samples: Iterator[dict[str, Any]] = tariterators.group_by_keys(files, **handling)
        return samples


def _replaced(stage: Any, ahead: Ahead, limits: Limits) -> list[Any]:
    """What stands in place of one stage of a ``wds.WebDataset``: itself, unless it opens shards."""
    cache = importlib.import_module("webdataset.cache")
    tariterators = importlib.import_module("webdataset.tariterators")
    if isinstance(stage, _classes(cache, "StreamingOpen", "FileCache")):
        _tell_dropped(isinstance(stage, _classes(cache, "FileCache")))
        return [Opening(stage.handler, ahead, limits)]
    curried = getattr(stage, "f", None)
    cached = getattr(cache, "cached_tarfile_samples", None)
    if curried is None or curried not in (tariterators.tarfile_samples, cached):
        return [stage]
    _tell_dropped(curried is cached)
    files = {name: stage.kw.get(name) for name in ("select_files", "rename_files")}
    return [TarSamples(Opening(stage.kw.get("handler"), ahead, limits), files)]


def _classes(module: Any, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(module, name) for name in names if hasattr(module, name))


def _tell_dropped(cached: bool) -> None:
    if cached:  # asked for by WDS_CACHE, which webdataset reads by itself
        notice_once("cache_dir", _CACHE_NOTICE)


def _stock_open(sample: dict[str, Any]) -> dict[str, Any]:
    """Open what is not ours exactly as this version of webdataset does."""
    cache = importlib.import_module("webdataset.cache")
    streaming = getattr(cache, "StreamingOpen", None)
    if streaming is not None:
        opened: dict[str, Any] = next(iter(streaming()([sample])))  # its default handler raises
        return {**sample, **opened}
    return {**sample, "stream": gopen_module().gopen(os.fspath(sample["url"]))}
