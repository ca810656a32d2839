"""How verbs speak: results on stdout or in files that are whole, everything else on stderr, one line an error."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

import click

from forebay_proxy.core.errors import ConfigError, ForebayError

__all__ = [
    "error_line", "is_terminal", "many", "notice", "plain_table", "say", "say_json", "show_table", "silence_stdout", "wrapped",
    "write_whole",
]  # fmt: skip


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


def write_whole(texts: Mapping[Path, str], next_step: str) -> None:
    """Write all of these files or none, each whole: somebody may be reading the old one. Rights and links stay, and so do devices.

    Raises ``ConfigError`` that names the place and the cause.
    """
    fresh: dict[Path, Path] = {}
    try:
        for path, text in texts.items():
            target = path.resolve()
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists() and not target.is_file():  # /dev/stdout
                target.write_text(text, encoding="utf-8")
                continue
            fresh[target] = target.with_name(f".{target.name}.{os.getpid()}")
            fresh[target].write_text(text, encoding="utf-8")
            with suppress(FileNotFoundError):
                shutil.copymode(target, fresh[target])
        for path, written in fresh.items():
            written.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", next_step=next_step) from error
    finally:
        for written in fresh.values():
            with suppress(OSError):
                written.unlink()
