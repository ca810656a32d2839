"""Shards and messages as they may be shown: without what proves who asks."""

from __future__ import annotations

import re
from typing import Any

from forebay_loader.base.shown_shard import shown_shard
from forebay_proxy.wire.commands.sources import parse_source

__all__ = ["shown_message", "shown_source"]

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
