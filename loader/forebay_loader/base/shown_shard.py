"""A shard's URL as messages and states have it: without what may be secret in it."""

from __future__ import annotations

from typing import Any

__all__ = ["shown_shard"]


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
