"""What people write where a shard is opened, understood: URLs and ``pipe:`` commands; and whole patterns of them, braces, ``::``
and all, as URLs that are expanded afterwards. Pure, runs nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Callable, Optional

from forebay_proxy.wire.commands.curl import userinfo_header
from forebay_proxy.wire.commands.pipe_tools import understand
from forebay_proxy.wire.commands.shell import NotRewritten, split_command
from forebay_proxy.wire.urls.patterns import InvalidPattern, offers_choice
from forebay_proxy.wire.urls.shard_url import SCHEMES, InvalidShardUrl, ShardUrl, parse_origin_url

__all__ = ["Source", "masked_parts", "parse_source", "why_left"]


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


_SAFE_INSIDE = re.compile(r"[A-Za-z0-9._~/=:@+,{}-]*")  # nothing that a proxy URL would write differently
_MARK = "fbx{}xbf"  # stands for a group while the text around it is parsed; passes as a host, a bucket and a key
_BRACES = re.compile(r"[{}]")
_MAX_DEPTH = 32  # nested braces, as parse_pattern takes them: each level is looked at once more
_MAX_GROUPS = 256  # in a part; a URL has a handful


def masked_parts(pattern: str) -> Optional[list[tuple[Source, Callable[[str], Optional[str]]]]]:
    """The parts of ``pattern`` understood, each with what puts its groups back into a text that was made from its URL.

    None where a part is nothing to fetch through Forebay. Raises ``InvalidShardUrl`` as ``parse_source`` does.
    """
    parts = [_understood(part) for part in pattern.split("::")]
    return None if None in parts else [part for part in parts if part]


def _understood(part: str) -> Optional[tuple[Source, Callable[[str], Optional[str]]]]:
    if "\\" in part or "${" in part or "fbx" in part:
        return None  # an escaped brace or a variable means something else before expansion than after it
    ends = _balanced(part)
    masked = None if ends is None else _masked(part, ends)
    if masked is None:
        return None  # more braces than a pattern may have
    text, groups = masked
    source = parse_source(text)
    return None if source is None else (source, lambda target: _unmasked(target, groups))


def _balanced(part: str) -> Optional[dict[int, int]]:
    """Where each group that closes begins -> where it ends; None where they are nested deeper than a pattern's may be."""
    ends: dict[int, int] = {}
    opened: list[int] = []
    deepest: dict[int, int] = {}  # how many levels a group has, itself included
    for brace in _BRACES.finditer(part):
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened:
            start = opened.pop()
            ends[start] = brace.end()
            levels = deepest.get(start, 0) + 1
            if levels > _MAX_DEPTH:
                return None
            if opened:
                deepest[opened[-1]] = max(deepest.get(opened[-1], 0), levels)
    return ends


def _unmasked(target: str, groups: list[str]) -> Optional[str]:
    """``target`` with its groups; None where one stood in a part that does not travel."""
    if any(target.count(_MARK.format(number)) != 1 for number in range(len(groups))):
        return None
    for number, group in enumerate(groups):
        target = target.replace(_MARK.format(number), group)
    return target


def _masked(part: str, ends: dict[int, int]) -> Optional[tuple[str, list[str]]]:
    """``part`` with a mark for each outermost group that expands, and those groups. A group that does not (``{0000}``) is plain text.

    None where they are too many.
    """
    groups: list[str] = []
    texts: list[str] = []
    position = 0
    for start in sorted(ends):
        group = part[start : ends[start]]
        if start < position or not _SAFE_INSIDE.fullmatch(group) or not _expands(group):
            continue
        texts += part[position:start], _MARK.format(len(groups))
        groups.append(group)
        position = ends[start]
    return None if len(groups) > _MAX_GROUPS else ("".join((*texts, part[position:])), groups)


def _expands(group: str) -> bool:
    """Whether the outer braces themselves offer a choice: expansion takes them away."""
    try:
        return offers_choice(group[1:-1])
    except InvalidPattern:
        return False
