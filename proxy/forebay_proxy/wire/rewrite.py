"""Sends a whole shard pattern through Forebay: braces, ``::`` and all; it expands afterwards. Pure, runs nothing."""

from __future__ import annotations

import re
from typing import Optional

from forebay_proxy.wire.patterns import InvalidPattern, parse_pattern
from forebay_proxy.wire.shard_url import proxy_url
from forebay_proxy.wire.sources import parse_source

__all__ = ["rewrite_pattern"]

_SAFE_INSIDE = re.compile(r"[A-Za-z0-9._~/=:@+,{}-]*")  # nothing that a proxy URL would write differently
_MARK = "fbx{}xbf"  # stands for a group while the text around it is parsed; passes as a host, a bucket and a key


def rewrite_pattern(base: str, pattern: str) -> Optional[str]:
    """``pattern`` (URLs or ``pipe:`` commands, braces, ``::`` joins) with every part through the Forebay at ``base``.

    None where a part cannot go through it, or not without its headers, which no URL carries. Raises ``InvalidShardUrl`` as
    ``parse_source`` does.
    """
    parts = [_rewritten(base, part) for part in pattern.split("::")]
    return None if None in parts else "::".join(part for part in parts if part)


def _rewritten(base: str, part: str) -> Optional[str]:
    if "\\" in part or "${" in part or "fbx" in part:
        return None  # an escaped brace or a variable means something else before expansion than after it
    text, groups = _masked(part)
    source = parse_source(text)
    if source is None or source.headers:
        return None
    target = proxy_url(base, source.url)
    if any(target.count(_MARK.format(number)) != 1 for number in range(len(groups))):
        return None  # a group stood in a part that does not travel
    for number, group in enumerate(groups):
        target = target.replace(_MARK.format(number), group)
    return target


def _masked(part: str) -> tuple[str, list[str]]:
    """``part`` with a mark for each outermost group that expands, and those groups. A group that does not (``{0000}``) is plain text."""
    groups: list[str] = []
    position = 0
    text = ""
    while position < len(part):
        group = _group_at(part, position) if part[position] == "{" else ""
        if group and _SAFE_INSIDE.fullmatch(group) and _expands(group):
            text += _MARK.format(len(groups))
            groups.append(group)
        else:
            group = part[position]
            text += group
        position += len(group)
    return text, groups


def _group_at(part: str, start: int) -> str:
    """The balanced group that opens at ``start``; "" if it never closes."""
    level = 0
    for position in range(start, len(part)):
        level += {"{": 1, "}": -1}.get(part[position], 0)
        if level == 0:
            return part[start : position + 1]
    return ""


def _expands(group: str) -> bool:
    """Whether the outer braces themselves offer a choice: expansion takes them away."""
    try:
        first = parse_pattern(group).at(0)
    except InvalidPattern:
        return False
    return not first.startswith("{")
