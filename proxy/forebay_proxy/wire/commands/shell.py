"""Reads the one simple command of a ``pipe:`` string as ``sh -c`` would, and gives up where a shell would do more. Pure, runs nothing.

A suffix that only hides trouble (``|| true``, ``2>/dev/null``, ``< /dev/null``) or only shows progress (``| pv …``) is taken off. Any other
operator, expansion, comment or substitution means the string is a program of its own: ``NotRewritten``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Iterator

__all__ = ["Command", "NotRewritten", "split_command"]

_MAX_COMMAND = 32768  # four of the longest URLs; a longer command is a program, not a shard's name
_TOKEN = re.compile(
    r"""(?P<space>[ \t]+)
    |(?P<quiet>(?:2>|<)[ \t]*/dev/null(?![^\s|]))
    |(?P<operator>\|\|?)
    |(?P<word>(?:'[^']*'|"(?:[^"\\$`]|\\.)*"|\\[^\n]|[^\s'"\\$`|&;<>()])+)""",
    re.VERBOSE,
)
_PIECE = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)|([^'"\\]+)""")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PV = re.compile(r"pv( -[pteraAnbfqWlTc]+| -[iNsLBwH] \S+)*")


class NotRewritten(Exception):
    """The text is not ours to understand; whoever asked opens it as it always did. ``str()`` says why where only its URL is at fault."""


@dataclass(frozen=True)
class Command:
    """A simple command: leading ``NAME=value`` assignments and words, quotes removed. May hold secrets."""

    words: tuple[str, ...] = field(repr=False)
    environ: dict[str, str] = field(default_factory=dict, repr=False)


def split_command(text: str) -> Command:
    """The command in ``text`` (without ``pipe:``). Raises ``NotRewritten``."""
    first, *rest = _pipeline(text)
    if not all(_harmless(operator, words) for operator, words in rest) or [operator for operator, _ in rest] not in _TAILS:
        raise NotRewritten
    count = next((index for index, raw in enumerate(first[1]) if not _ASSIGNMENT.match(raw)), len(first[1]))
    assignments = (_unquoted(raw).partition("=") for raw in first[1][:count])
    words = tuple(_unquoted(raw) for raw in first[1][count:])
    if not words:
        raise NotRewritten
    return Command(words, {name: value for name, _, value in assignments})


_TAILS: tuple[list[str], ...] = ([], ["||"], ["|"], ["|", "||"])


def _harmless(operator: str, words: list[str]) -> bool:
    if operator == "||":
        return words in (["true"], [":"])
    return _PV.fullmatch(" ".join(words)) is not None


def _pipeline(text: str) -> list[tuple[str, list[str]]]:
    """Raw words between operators, each list with the operator before it."""
    stages: list[tuple[str, list[str]]] = [("", [])]
    for kind, raw in _tokens(text):
        if kind == "operator":
            stages.append((raw, []))
        elif kind == "word":
            stages[-1][1].append(raw)
    return stages


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    if len(text) > _MAX_COMMAND:
        raise NotRewritten
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise NotRewritten
        yield str(match.lastgroup), match.group()
        position = match.end()


def _unquoted(raw: str) -> str:
    """A raw word as the command sees it."""
    if raw[0] in "#~":
        raise NotRewritten  # a comment, or a home directory that only the shell knows
    parts = [_piece(match) for match in _PIECE.finditer(raw)]
    word = "".join(parts)
    bare = "".join(match.group(4) or "" for match in _PIECE.finditer(raw))
    if "://" not in word and set("*?[") & set(bare):
        raise NotRewritten  # a glob; no file is called https://…, so there the shell leaves these characters as they are
    return word


def _piece(match: re.Match[str]) -> str:
    single, double, escaped, bare = match.groups()
    if double is not None:
        return re.sub(r'\\(["\\$`])', r"\1", double)
    return next(part for part in (single, escaped, bare) if part is not None)
