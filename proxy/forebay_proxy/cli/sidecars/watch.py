"""``forebay status --watch`` on a terminal: the verdict first, then as much of each table as fits the screen. ``screen`` is pure."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

from rich.live import Live
from rich.text import Text

__all__ = ["Row", "fitted", "screen", "shortened", "watch"]

Row = tuple[str, ...]
Tables = Sequence[tuple[str, Sequence[Row]]]  # (name, heading and rows)

_GAP = 2
_LEAST_WIDTH = 5
_VERDICT_LINES, _DO_LINES = 3, 2
_MARKS = {"fine": ("OK", "bold green"), "look": ("LOOK", "bold yellow"), "act": ("ACT", "bold red")}


def shortened(text: str, width: int) -> str:
    """Names differ at their ends, and say what they are at their beginnings: the middle is cut. Of words the end."""
    if len(text) <= width:
        return text
    if " " in text and width > 1:
        return f"{text[: width - 1]}…"
    if width <= 1:
        return "…"[:width]
    end = (width - 1) * 2 // 3
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def fitted(rows: Sequence[Row], width: int) -> list[str]:
    """As aligned columns, at most ``width`` wide: the widest columns are shortened first."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    room = width - _GAP * (len(widths) - 1)
    while sum(widths) > room and max(widths) > _LEAST_WIDTH:
        widest = max(range(len(widths)), key=lambda at: widths[at])
        widths[widest] -= 1
    lines = (
        (" " * _GAP).join(shortened(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
    return [line[:width] for line in lines]


def screen(verdict: Mapping[str, Any] | None, head: str, tables: Tables, totals: Sequence[str], width: int, height: int) -> list[Text]:
    """Exactly what fits ``height`` lines. Of each table at least a row is shown, and how many more there are; totals come last."""
    lines = [*_said(verdict, width), Text(shortened(head, width), style="dim")]
    filled = [(name, rows) for name, rows in tables if len(rows) > 1]
    left = height - len(lines)
    sizes = [len(rows) - 1 for _, rows in filled]
    shown = _shares(sizes, left)
    if not all(shown):
        shown = _shares(sizes, left - 1)  # which of them is left out is said, too
    for (_, rows), count in zip(filled, shown, strict=True):
        if not count:
            continue
        more = len(rows) - 1 - count
        made = fitted(rows[: count + 1], width)
        lines += [Text(""), Text(made[0], style="bold"), *map(Text, made[1:])]
        if more:
            lines.append(Text(f"… {more} more row{'' if more == 1 else 's'}", style="dim"))
    hidden = [name for (name, _), count in zip(filled, shown, strict=True) if not count]
    if hidden and len(lines) < height:
        lines.append(Text(shortened(f"… no room for: {', '.join(hidden)}", width), style="dim"))
    for text in totals:
        if len(lines) < height:
            lines.append(Text(shortened(text, width), style="dim"))
    return lines[:height]


def _said(verdict: Mapping[str, Any] | None, width: int) -> list[Text]:
    """The sentence with its severity in words and colour, what to do, what to type."""
    if verdict is None:
        return []
    mark, style = _MARKS.get(str(verdict.get("severity")), ("", ""))
    lines = wrap(f"{mark}  {verdict['sentence']}", width, max_lines=_VERDICT_LINES, placeholder=" …") or [mark]
    said = [Text(line, style=style) for line in lines]
    if verdict.get("do"):
        said += [Text(line) for line in wrap(f"do: {verdict['do']}", width, max_lines=_DO_LINES, placeholder=" …")]
    if verdict.get("line"):
        said.append(Text(shortened(f"type: {verdict['line']}", width), style="bold"))
    return said


def _shares(sizes: Sequence[int], height: int) -> list[int]:
    """How many rows of each table are shown: a table costs a blank line and its heading, and a line where rows are left out."""

    def cost(shown: Sequence[int]) -> int:
        return sum(2 + count + (count < size) for count, size in zip(shown, sizes, strict=True) if count)

    shown = [0] * len(sizes)
    for wanted in range(1, max(sizes, default=0) + 1):
        for at, size in enumerate(sizes):
            tried = [*shown[:at], min(size, wanted), *shown[at + 1 :]]
            if wanted <= size and cost(tried) <= height:
                shown = tried
    return shown


def watch(ask: Callable[[], Any], draw: Callable[[Any, int, int, int], list[Text]], interval_s: float) -> None:
    """Until q or Ctrl-C. ``draw(found, width, height, order)``: ``order`` grows by one with each s."""
    order = 0
    with _keys() as key, Live(screen=True, auto_refresh=False) as live:
        while True:
            found = ask()
            due = time.monotonic() + interval_s
            while True:
                size = get_terminal_size()
                live.update(Text("\n").join(draw(found, size.columns, size.lines, order)), refresh=True)
                pressed = key(due - time.monotonic())
                if pressed == "q":
                    return
                if pressed != "s":
                    break
                order += 1


def _no_key(seconds: float) -> str:
    time.sleep(max(0.0, seconds))
    return ""


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for a key; "" where none came. Keys come without Enter, and are not echoed."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def key(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, seconds))
        return os.read(descriptor, 1).decode("latin-1") if ready else ""

    try:
        yield key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
