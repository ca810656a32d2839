"""Replaces webdataset's ``gopen`` for reading: it asks the sidecar instead of starting a process for each shard.

Everything else keeps webdataset's own opener: writing, unknown ``pipe:`` commands, other schemes, and openers that a user registers in
``gopen_schemes``, earlier or later. Forebay's own rules in ``GOPEN_REWRITE`` are ignored here, since a rewritten URL has lost the headers
of its command. Other rules keep working.
"""

from __future__ import annotations

import importlib
import os
import re
from functools import lru_cache
from typing import Any, Callable, Optional, Union

from forebay_loader.base.argument_types import check_limits
from forebay_loader.base.notices import notice_once
from forebay_loader.base.timeouts import DEFAULT_LIMITS, Limits
from forebay_loader.identity.reader_name import CLAIMS, ensure_job, rank_of, worker_of
from forebay_loader.stream.descriptor_request import open_descriptor
from forebay_loader.stream.shard_descriptor import Descriptor
from forebay_loader.stream.shard_stream import ShardStream
from forebay_loader.transport.body import Progress
from forebay_loader.transport.endpoint import find_endpoint
from forebay_proxy.wire.commands.gopen_rules import rewritten as by_rules
from forebay_proxy.wire.commands.gopen_rules import without_ours
from forebay_proxy.wire.commands.sources import Source, parse_source, why_left
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, parse_proxy_target

__all__ = [
    "alongside",
    "command_name",
    "disable",
    "enable",
    "enabled",
    "gopen_module",
    "left_command",
    "open_source",
    "refused",
    "rewritten",
    "source_of",
    "tell_left_alone",
    "tell_unused",
    "worker_init",
]  # fmt: skip

TAKEN = ("pipe", "http", "https", "s3", "gs", "hf")  # entries of gopen_schemes that enable() sets
ORIGINS = frozenset({"http", "https", "s3", "gs", "hf", "file"})
# webdataset's own entries. Any other entry is a user's opener and stays.
_STOCK = {"pipe": "gopen_pipe", "http": "gopen_curl", "https": "gopen_curl", "gs": "gopen_gsutil", "hf": "gopen_hf"}
_COMMAND = re.compile(r"pipe:\s*([\w./-]+)(?=\s|$)", re.ASCII)


class _Takeover:
    """What ``enable`` replaced in webdataset, so that ``disable`` can put it back. One for each process."""

    def __init__(self) -> None:
        self.limits: Optional[Limits] = None  # None: not enabled
        self.replaced: dict[str, Any] = {}
        self.rewrite: Optional[Callable[[str], str]] = None
        self.refused: set[str] = set()  # origin schemes that the sidecar refuses to serve to this process
        self.others: list[tuple[Callable[[], None], Callable[[], None]]] = []  # (replace, give back) of other modules


_TAKEOVER = _Takeover()


def enable(*, export: bool = False, limits: Limits = DEFAULT_LIMITS) -> None:
    """Send every shard that webdataset opens for reading in this process through the sidecar. Calling it again changes nothing.

    Call it at the top level of the main script. Forked DataLoader workers inherit it. Under spawn and forkserver it must run in the worker
    too: workers import the top level of the main script. Instead, pass ``worker_init_fn=fb.worker_init``, or have a Forebay stage such as
    ``fb.ahead()`` in the pipeline, which enables it in the worker that unpickles it. If there is no sidecar, webdataset opens shards its
    own way, with one warning.

    Args:
        export: True lets child processes enable it as soon as they import this package (``FOREBAY_ENABLE=1``).
        limits: The timeouts of a reader, in seconds. If ``enable`` is called again, the last limits count.

    Raises:
        TypeError: ``limits`` is not an ``fb.Limits``.
        ModuleNotFoundError: webdataset is not installed.

    Examples:
        >>> import forebay_loader as fb
        >>> fb.enable()
    """
    check_limits(limits)
    ensure_job()
    if export:
        os.environ["FOREBAY_ENABLE"] = "1"
    gopen = gopen_module()
    if _TAKEOVER.limits is None:
        _TAKEOVER.rewrite, gopen.rewrite_url = gopen.rewrite_url, rewritten
        _TAKEOVER.replaced = {scheme: gopen.gopen_schemes.get(scheme) for scheme in TAKEN if _is_stock(scheme)}
        gopen.gopen_schemes.update(dict.fromkeys(_TAKEOVER.replaced, _open))
    _TAKEOVER.limits = limits
    for replace, _ in _TAKEOVER.others:
        replace()


def alongside(replace: Callable[[], None], give_back: Callable[[], None]) -> None:
    """Make ``enable`` call ``replace`` too, and ``disable`` call ``give_back``. For modules that import this one and replace more of
    webdataset.
    """
    _TAKEOVER.others.append((replace, give_back))


def disable() -> None:
    """Restore webdataset's own openers. It never raises. An opener that you registered after ``fb.enable()`` stays.

    Examples:
        >>> fb.disable()
    """
    os.environ.pop("FOREBAY_ENABLE", None)
    if _TAKEOVER.limits is None:
        return
    gopen = gopen_module()
    gopen.rewrite_url, _TAKEOVER.rewrite = _TAKEOVER.rewrite, None
    for scheme, stock in _TAKEOVER.replaced.items():
        if gopen.gopen_schemes.get(scheme) is not _open:
            continue
        if stock is None:
            del gopen.gopen_schemes[scheme]
        else:
            gopen.gopen_schemes[scheme] = stock
    _TAKEOVER.replaced, _TAKEOVER.limits = {}, None
    for _, give_back in _TAKEOVER.others:
        give_back()


def enabled() -> Optional[Limits]:
    """The limits that ``enable`` was called with; None if it was not called."""
    return _TAKEOVER.limits


def worker_init(worker_id: int = 0) -> None:
    """The ``worker_init_fn`` for a DataLoader whose workers are spawned: enables Forebay in the worker.

    Args:
        worker_id: What torch passes. It is not used.

    Raises:
        ModuleNotFoundError: webdataset is not installed.

    Examples:
        >>> loader = DataLoader(dataset, num_workers=8, multiprocessing_context="spawn", worker_init_fn=fb.worker_init)
    """
    enable()


def refused(url: str) -> str:
    """The scheme of the shard at ``url``, if the sidecar has refused that scheme in this process; else ""."""
    try:
        source = parse_source(url) if _TAKEOVER.refused else None
    except InvalidShardUrl:
        return ""
    return source.url.scheme if source is not None and source.url.scheme in _TAKEOVER.refused else ""


def gopen_module() -> Any:
    """The module ``webdataset.gopen``. The package's attribute of that name is the function."""
    return importlib.import_module("webdataset.gopen")


def source_of(url: str) -> Optional[Source]:
    """The source that ``gopen(url)`` would fetch through the sidecar; None if webdataset opens it itself. Raises ``InvalidShardUrl``."""
    return _understood(rewritten(url))


def rewritten(url: str) -> str:
    """``url`` after the rules of ``GOPEN_REWRITE``, without Forebay's own rules.

    A rule that only leads to the sidecar is not applied either: the sidecar is asked for the original URL.
    """
    rules = os.environ.get("GOPEN_REWRITE", "")
    others = without_ours(rules)
    if rules and not others:
        return url  # do not ask webdataset: with WDS_SECURE it refuses all rules
    rewrite = _TAKEOVER.rewrite or gopen_module().rewrite_url
    found = str(rewrite(url)) if others == rules or _is_secured() else by_rules(others, url)
    if found == url or _proxied(found) is None:
        return found
    try:
        return found if _understood(url) is None else url
    except InvalidShardUrl:
        return url


def open_source(source: Source, limits: Limits = DEFAULT_LIMITS, version: str = "") -> Union[Descriptor, ShardStream]:
    """Open a source from ``source_of``, as the reader that announced it: its file if the sidecar has the whole shard, else a stream.

    ``version`` is the ETag of the wanted version. If the sidecar has that one, it gives the file without asking the origin.
    """
    reader = CLAIMS.opening(source.text)

    def streamed(progress: Optional[Progress] = None) -> ShardStream:
        own_open = _own_opener(source.text)
        return ShardStream(source, reader, own_open=own_open, limits=limits, refused=_remember_refusal, progress=progress)

    return open_descriptor(source, reader, streamed, version) or streamed()


def _open(url: str, mode: str = "rb", bufsize: int = 8192, **options: Any) -> Any:
    """The entry in ``gopen_schemes`` for each replaced scheme. ``url`` is already rewritten."""
    source = _understood(url) if mode.startswith("r") else None
    if source is not None:
        return open_source(source, _TAKEOVER.limits or DEFAULT_LIMITS)
    if mode.startswith("r"):
        tell_left_alone(url)
    own = _own_opener(url) or gopen_module().gopen_error
    return own(url, mode, bufsize, **options)


def _understood(text: str) -> Optional[Source]:
    scheme = text.partition(":")[0].lower()
    if scheme not in TAKEN or (scheme == "pipe" and _is_secured()) or not (_is_stock(scheme) or _schemes().get(scheme) is _open):
        return None
    source = _proxied(text) or _parsed(text)
    if source is None or source.url.scheme not in ORIGINS or source.url.scheme in _TAKEOVER.refused:
        return None
    return source


# Cached: a shard's URL is parsed when it is announced, when it is opened, and for its index.
_parsed = lru_cache(maxsize=64)(parse_source)


def _proxied(text: str) -> Optional[Source]:
    """The shard behind a URL of the sidecar itself, as ``GOPEN_REWRITE`` makes them; None for other URLs."""
    if not text.startswith("http://"):
        return None
    endpoint = find_endpoint()
    if endpoint is None or not endpoint.base or not text.startswith(endpoint.base + "/"):
        return None
    try:
        return Source(parse_proxy_target(text[len(endpoint.base) :]), (), text)
    except InvalidShardUrl:
        return None


def _own_opener(text: str) -> Optional[Callable[..., Any]]:
    """The function by which webdataset itself would open ``text``; None if it has none."""
    if _proxied(text) is not None:
        return None  # curl would ask the same sidecar again
    scheme = text.partition(":")[0].lower()
    found: Optional[Callable[..., Any]] = _TAKEOVER.replaced[scheme] if scheme in _TAKEOVER.replaced else _schemes().get(scheme)
    if found is _open:  # somebody put our opener back after disable(): it must not call itself
        found = getattr(gopen_module(), _STOCK.get(scheme, ""), None)
    return found


def _is_stock(scheme: str) -> bool:
    """Whether the opener of ``scheme`` is webdataset's own, or its function that only raises."""
    found = _schemes().get(scheme) or _schemes().get("__default__")
    stock = (_STOCK.get(scheme), "gopen_error")  # older versions have no opener for hf
    return getattr(found, "__module__", "") == "webdataset.gopen" and getattr(found, "__name__", "") in stock


def _is_secured() -> bool:
    """Whether webdataset was told to refuse commands (``WDS_SECURE``). It then raises the error itself."""
    return bool(getattr(getattr(gopen_module(), "utils", None), "enforce_security", False))


def _schemes() -> dict[str, Any]:
    schemes: dict[str, Any] = gopen_module().gopen_schemes
    return schemes


def _remember_refusal(scheme: str) -> None:
    _TAKEOVER.refused.add(scheme)
    notice_once(f"refused-{scheme}", f"the sidecar does not serve {scheme} shards from here; they are left to webdataset")


def tell_left_alone(url: str) -> None:
    """Log once for each command that webdataset opens it. Only the command's name: the rest may hold a token."""
    if url.startswith("hf://buckets/"):
        notice_once("hf-buckets", "hf buckets are not read by Forebay; left to webdataset's opener for hf, uncached")
    if url.startswith("pipe:") and not refused(url):  # a refused scheme has a notice of its own
        why = left_command(url)
        notice_once(f"pipe-{why}", f"{why}; left to webdataset, once a shard, uncached")


def tell_unused() -> None:
    """Log that no copy will be made in a ``cache_dir``: once a program, by rank 0, when a pipeline is built or first read."""
    if rank_of(os.environ) == 0 and worker_of() == 0:
        notice_once(
            "cache_dir",
            "cache_dir is not used for what comes through Forebay: the sidecar keeps the one copy of a shard on this node, bounded and "
            "shared by all workers",
        )


def left_command(url: str) -> str:
    """Why webdataset runs a ``pipe:`` command itself."""
    why = why_left(url)
    return f"pipe: command {command_name(url)}: {why}" if why else f"pipe: command {command_name(url)} is not one Forebay reads for itself"


def command_name(url: str) -> str:
    """The program of a ``pipe:`` command, without its arguments: they may hold a token."""
    found = _COMMAND.match(url)
    return os.path.basename(found[1]) if found else "of this form"
