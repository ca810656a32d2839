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


def plain_table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as aligned columns without any decoration."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def show_table(rows: Sequence[tuple[str, ...]]) -> None:
    """On stdout, the heading first where there is one."""
    for line in plain_table(rows):
        say(line)


def wrapped(text: str) -> list[str]:
    """Between words on a terminal; elsewhere one line."""
    return wrap(text, max(20, get_terminal_size().columns)) if is_terminal() else [text]
