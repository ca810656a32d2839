"""Reads the one simple command of a ``pipe:`` string as ``sh -c`` would, and gives up where a shell would do more; and sorts its words
into options and operands by a table of the options it may have. Pure, runs nothing.

A suffix that only hides trouble (``|| true``, ``2>/dev/null``, ``< /dev/null``) or only shows progress (``| pv …``) is taken off. Any other
operator, expansion, comment or substitution means the string is a program of its own: ``NotRewritten``.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Iterator, Mapping, Sequence

__all__ = ["SKIP", "SKIP_VALUE", "Command", "NotRewritten", "Words", "flag_table", "sort_words", "split_command"]


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


SKIP = ""  # a switch that changes no byte
SKIP_VALUE = "="  # the same with a value
# Any other entry names what is kept: "name" a switch, "name=" with a value, "name?" with a value that is there only if it is "requester".


@dataclass(frozen=True)
class Words:
    """What was kept: ``values[name]`` in the order given ("" for a switch), and the operands. May hold secrets."""

    values: dict[str, list[str]] = field(repr=False)
    operands: list[str] = field(repr=False)

    def last(self, name: str) -> str | None:
        return self.values[name][-1] if name in self.values else None

    def every(self, name: str) -> list[str]:
        return self.values.get(name, [])


def flag_table(*, skip: str = "", skip_value: str = "", keep: Mapping[str, str] | None = None) -> dict[str, str]:
    """A table from blank-separated option names."""
    table = dict.fromkeys(skip.split(), SKIP)
    table.update(dict.fromkeys(skip_value.split(), SKIP_VALUE))
    for names, kept in (keep or {}).items():
        table.update(dict.fromkeys(names.split(), kept))
    return table


def sort_words(words: Sequence[str], table: Mapping[str, str], *, clusters: bool = False) -> Words:
    """``words`` sorted by ``table``. ``clusters``: short options may stand together (``-sSLo-``).

    Raises ``NotRewritten`` for an option the table does not name: its effect is not known here.
    """
    values: dict[str, list[str]] = {}
    operands: list[str] = []
    queue = deque(words)
    while queue:
        word = queue.popleft()
        if not word.startswith("-") or word == "-":
            operands.append(word)
            continue
        for kept, attached in _options(word, table, clusters):
            value = attached if attached is not None else _value(kept, queue)
            values.setdefault(kept.rstrip("=?"), []).append(value)
    return Words(values, operands)


def _value(kept: str, queue: deque[str]) -> str:
    if kept.endswith("="):
        if not queue:
            raise NotRewritten
        return queue.popleft()
    if kept.endswith("?") and queue and queue[0] == "requester":
        return queue.popleft()
    return ""


def _options(word: str, table: Mapping[str, str], clusters: bool) -> Iterator[tuple[str, str | None]]:
    """The table's entries for one word, each with the value that is part of the word."""
    if word in table:
        yield table[word], None
    elif word.startswith("--"):
        name, equals, value = word.partition("=")
        if not equals or not table.get(name, "").endswith("="):
            raise NotRewritten
        yield table[name], value
    elif clusters:
        yield from _cluster(word[1:], table)
    else:
        raise NotRewritten


def _cluster(letters: str, table: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    for index, letter in enumerate(letters):
        kept = table.get(f"-{letter}")
        if kept is None:
            raise NotRewritten
        if kept.endswith("="):
            yield kept, letters[index + 1 :] or None
            return
        yield kept, None
