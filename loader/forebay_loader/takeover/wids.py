"""wids, webdataset's indexed access: whole shards that it downloads with a command each come through the sidecar instead.

The place of a download, its life and the order of waiting workers stay wids' own. A downloader with a handler of the user's, a ``pipe:``
template (it names the file that it writes), and what Forebay does not read are left to it.
"""

from __future__ import annotations

import functools
import shutil
from typing import Any, Callable, Optional
from urllib.parse import urlsplit

from forebay_loader.base.takeover_report import REPORT
from forebay_loader.base.timeouts import DEFAULT_LIMITS
from forebay_loader.stream.webdataset_openers import enabled, gopen_module, open_source, source_of
from forebay_proxy.wire.commands.sources import Source

__all__ = ["replace_downloads"]

_CHUNK_BYTES = 1 << 20
_OURS = ("http", "https", "s3", "gs")  # of those that wids has a command for


def replace_downloads(module: Any) -> None:
    """Replace what downloads in ``wids.wids_dl``."""
    kind, commands = module.SimpleDownloader, module.default_cmds
    if not hasattr(kind.download, "__wrapped__"):
        kind.download = _downloading(kind.download, commands)


def _downloading(stock: Callable[..., str], commands: Any) -> Callable[..., str]:
    @functools.wraps(stock)
    def download(self: Any, remote: str, local: str) -> str:
        scheme = urlsplit(remote).scheme
        source = _source_of(remote) if scheme in _OURS and self.handlers.get(scheme) == commands.get(scheme) else None
        if source is None:
            return stock(self, remote, local)
        REPORT.taken()
        with open_source(source, enabled() or DEFAULT_LIMITS) as stream, open(local, "wb") as file:
            shutil.copyfileobj(stream, file, _CHUNK_BYTES)
        return local

    return download


def _source_of(remote: str) -> Optional[Source]:
    gopen_module()  # importing it enables Forebay; wids need not have
    if enabled() is None:
        return None
    try:
        return source_of(remote)
    except ValueError:
        return None  # wids' command says what it makes of it
