"""The stage that opens shards through the sidecar, and the one that also reads the tars: for any pipeline of webdataset's."""

from __future__ import annotations

import importlib
import inspect
import os
from typing import Any, Callable, Iterable, Iterator, Optional

from forebay_loader.ahead import Ahead
from forebay_loader.expected import Expected
from forebay_loader.limits import DEFAULT_LIMITS, Limits
from forebay_loader.openers import gopen_module, open_source, source_of
from forebay_loader.reader import ensure_job
from forebay_loader.tar import check_rule, samples_of

__all__ = ["Handler", "Opening", "TarSamples", "tarfile_to_samples"]

Handler = Callable[[Exception], bool]


def tarfile_to_samples(
    handler: Optional[Handler] = None,
    select_files: Optional[Callable[[str], bool]] = None,
    rename_files: Optional[Callable[[str], str]] = None,
    *,
    on_tar_fault: str = "raise",
    views: bool = False,
    ahead: Optional[int] = None,
    set: Optional[str] = None,
    epoch: Any = None,
    limits: Limits = DEFAULT_LIMITS,
) -> TarSamples:
    """``wds.tarfile_to_samples(…)`` for a ``wds.DataPipeline``: shards come through the sidecar and are announced ahead.

    ``ahead``, ``set`` and ``epoch`` as in ``fb.ahead``. ``on_tar_fault`` says what becomes of a tar without its end marker, with data
    behind it, or with an unreadable header, all of which webdataset passes over in silence: "raise", or "warn" to read on as it does.
    ``views`` gives values as ``memoryview``s, for decoders that take them: no copy, but what holds one holds its shard's map.
    """
    ensure_job()
    files = {"select_files": select_files, "rename_files": rename_files, "on_tar_fault": on_tar_fault, "views": views}
    return TarSamples(Opening(handler, Ahead(ahead, set=set, epoch=epoch), limits), files)


class Opening:
    """The stage that turns URLs into open streams. ``handler`` decides what an exception means, as in webdataset; None raises it."""

    def __init__(self, handler: Optional[Handler], ahead: Ahead, limits: Limits) -> None:
        self.handler = handler
        self._ahead = ahead
        self._limits = limits
        self._expected = Expected()

    def __call__(self, data: Iterable[Any]) -> Iterator[dict[str, Any]]:
        return self._opened(self._ahead(data))  # at once: it tells a worker its rank before a splitter asks

    def _opened(self, data: Iterable[Any]) -> Iterator[dict[str, Any]]:
        for item in data:
            try:
                opened = self._open(item)
            except Exception as error:
                error.args = (*error.args, item["url"] if isinstance(item, dict) else item)  # as url_opener does
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
        self._expected.check(source, self._limits)
        return {**sample, "stream": open_source(source, self._limits)}


class TarSamples:
    """``Opening``, then the tars' samples. ``handler`` serves opening, reading and grouping; ``files`` goes to ``samples_of``."""

    def __init__(self, opening: Opening, files: dict[str, Any]) -> None:
        check_rule(files.get("on_tar_fault", "raise"))
        self._opening = opening
        self._files = files

    def __call__(self, data: Iterable[Any]) -> Iterator[dict[str, Any]]:
        return self.read(self.opened(data))

    def opened(self, data: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """Each of ``data`` as it is, with its open ``stream``."""
        return self._opening(data)

    def read(self, opened: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The samples of what is open."""
        return samples_of(opened, handler=self._opening.handler, markers=ends_with_shards(), **self._files)

    @property
    def views(self) -> bool:
        return bool(self._files.get("views"))

    @property
    def selects(self) -> bool:
        """Whether some members, and so perhaps whole samples, are left out."""
        return self._files.get("select_files") is not None or self._files.get("rename_files") is not None


def ends_with_shards() -> bool:
    """Whether a sample ends with its shard in the installed webdataset: since its ``{}`` marker, which 0.2.86 does not have."""
    expander = importlib.import_module("webdataset.tariterators").tar_file_expander
    return "eof_value" in inspect.signature(expander).parameters


def _stock_open(sample: dict[str, Any]) -> dict[str, Any]:
    """Open what is not ours exactly as this version of webdataset does."""
    cache = importlib.import_module("webdataset.cache")
    streaming = getattr(cache, "StreamingOpen", None)
    if streaming is not None:
        opened: dict[str, Any] = next(iter(streaming()([sample])))  # its default handler raises
        return {**sample, **opened}
    return {**sample, "stream": gopen_module().gopen(os.fspath(sample["url"]))}
