"""Shards and messages as they may be shown: without what proves who asks."""

from __future__ import annotations

import re
from typing import Any

from forebay_proxy.wire.commands.sources import parse_source

__all__ = ["shown_message", "shown_shard", "shown_source", "size_text"]


def shown_shard(url: Any) -> str:
    """Without query, user and password; of a command nothing is shown."""
    text = str(url)
    if text.startswith("pipe:"):
        return "a pipe: command"
    scheme, separator, rest = text.partition("?")[0].partition("://")
    if not separator:
        return scheme
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


_URL = re.compile(r"([a-zA-Z][\w+.-]*://)(?:[^\s/@'\"]*@)?([^\s?#'\"<>]*)(?:[?#][^\s'\"<>]*)?")
_PIPE = re.compile(r"pipe:.*", re.DOTALL)
_QUERY = re.compile(r"\?[\w.~%-]+=[^\s'\"]*")
_NAMED = re.compile(
    r"(?i)\b((?:proxy-)?authorization|cookie|bearer|basic|password|passwd|secret\w*|\w*token|signature|credential|x-[\w-]+)"
    r"(['\"]?\s*[:= ]\s*['\"]?)(?:(?:bearer|basic|aws4-hmac-sha256)\s+)?[^\s'\",;]+"
)


def shown_source(url: Any) -> str:
    """A shard's name; of a command the URL that it fetches, "a pipe: command" where nobody knows that."""
    try:
        source = parse_source(str(url))
    except ValueError:
        source = None
    return shown_shard(url if source is None else source.url.text())


def shown_message(text: str) -> str:
    """``text`` whose URLs have lost user and query, and which names no value of a header or key that proves who asks."""
    text = _PIPE.sub("a pipe: command", text)
    text = _QUERY.sub("", _URL.sub(r"\1\2", text))
    return _NAMED.sub(r"\1\2…", text)


def size_text(count: float) -> str:
    """``12.1 GB``: decimal units, one digit behind the point."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
