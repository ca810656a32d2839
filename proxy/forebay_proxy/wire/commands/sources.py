"""What people write where a shard is opened, understood: URLs and ``pipe:`` commands. Pure, runs nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from forebay_proxy.wire.commands.curl import userinfo_header
from forebay_proxy.wire.commands.pipe_tools import understand
from forebay_proxy.wire.commands.shell import NotRewritten, split_command
from forebay_proxy.wire.urls.quoting import InvalidShardUrl
from forebay_proxy.wire.urls.shard_url import SCHEMES, ShardUrl, parse_origin_url

__all__ = ["Source", "parse_source", "why_left"]


@dataclass(frozen=True)
class Source:
    """Where the bytes live, and the headers that prove who asks (from ``-H``, ``-u``, ``user:password@``). ``text`` is the original.

    ``headers`` and ``text`` may hold secrets and are not shown.
    """

    url: ShardUrl
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    text: str = field(default="", repr=False)


def parse_source(text: str) -> Optional[Source]:
    """``text`` understood; None where it is left alone: an unknown command or option, a bare path, a scheme that is not ours, hf buckets.

    Raises ``InvalidShardUrl`` for a URL of ours that cannot name a shard, and for a known command that misses a part it cannot work
    without; the message holds the mend.
    """
    if text.startswith("pipe:"):
        return _from_pipe(text)
    scheme, _, rest = text.partition(":")
    scheme = scheme.lower()
    if scheme not in SCHEMES or not (rest.startswith("//") or (scheme == "file" and rest.startswith("/"))):
        return None
    if scheme == "hf" and rest.startswith("//buckets/"):
        return None  # a storage bucket is no repository: whoever has an opener for it keeps it
    return Source(parse_origin_url(text), userinfo_header(text) if scheme in ("http", "https") else (), text)


def why_left(text: str) -> str:
    """Why ``parse_source`` leaves a command alone that it knows: its URL is at fault; "" where that is not why."""
    try:
        understand(split_command(text[len("pipe:") :]))
    except NotRewritten as reason:
        return str(reason)
    except InvalidShardUrl:
        pass
    return ""


def _from_pipe(text: str) -> Optional[Source]:
    try:
        url, headers = understand(split_command(text[len("pipe:") :]))
    except NotRewritten:
        return None
    return Source(url, headers, text)
