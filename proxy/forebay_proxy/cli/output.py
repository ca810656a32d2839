"""How verbs speak: results on stdout, everything else on stderr, one line an error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

import click

from forebay_proxy.core.errors import ForebayError

__all__ = ["error_line", "is_terminal", "many", "notice", "plain_table", "say", "say_json", "show_table", "silence_stdout", "wrapped"]


def say(text: str) -> None:
    """A result, on stdout."""
    click.echo(text)


def say_json(value: Any) -> None:
    """A result for programs: one JSON document on one line."""
    click.echo(json.dumps(value))


def notice(text: str) -> None:
    """Something a person should know, on stderr."""
    click.echo(f"forebay: {text}", err=True)


def many(count: int, noun: str) -> str:
    """How many: ``1 shard``, ``2 shards``, ``12,000 shards``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def silence_stdout() -> None:
    """Nobody reads it any more: what Python still holds of it must not fail again at the interpreter's end, with exit code 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def error_line(error: Exception) -> str:
    """Cause and next step in one line."""
    step = error.next_step if isinstance(error, ForebayError) else ""
    text = " ".join(str(error).split())
    return f"{text}; {step}" if step else text


def is_terminal() -> bool:
    """Whether a person watches stdout."""
    return sys.stdout.isatty()


def plain_table(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows as aligned columns without any decoration, for logs and pipes."""
    if not rows:
        return []
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def wrapped(text: str) -> list[str]:
    """Between words on a terminal; elsewhere one line."""
    return wrap(text, max(20, get_terminal_size().columns)) if is_terminal() else [text]


def show_table(rows: Sequence[tuple[str, ...]]) -> None:
    """The first row is the heading, empty where there is none. On a terminal that is too narrow aligned columns: a table breaks words."""
    lines = plain_table([row for row in rows if any(row)])
    if not is_terminal() or max(map(len, lines)) > get_terminal_size().columns:
        for line in lines:
            say(line)
        return
    from rich.console import Console  # noqa: PLC0415  # a tenth of a second that most verbs need not wait for
    from rich.table import Table  # noqa: PLC0415

    table = Table(show_header=any(rows[0]), box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name)
    for row in rows[1:]:
        table.add_row(*row)
    Console().print(table)
