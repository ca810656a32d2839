"""Tables and paragraphs for a person: as wide as their terminal; elsewhere plain lines, as programs want them."""

from __future__ import annotations

from collections.abc import Sequence
from shutil import get_terminal_size
from textwrap import wrap

from rich.console import Console
from rich.table import Table

from forebay_proxy.cli.output import is_terminal, plain_table, say

__all__ = ["show_table", "wrapped"]


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
    table = Table(show_header=any(rows[0]), box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name)
    for row in rows[1:]:
        table.add_row(*row)
    Console().print(table)
