"""Sorts a command's words into options and operands by a table of the options it may have. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Iterator, Mapping, Sequence

from forebay_proxy.wire.commands.shell import NotRewritten

__all__ = ["SKIP", "SKIP_VALUE", "Words", "flag_table", "sort_words"]

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
