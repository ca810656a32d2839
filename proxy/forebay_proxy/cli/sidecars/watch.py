"""``forebay status --watch`` on a terminal: the verdict first, then as much of each table as fits the screen. ``screen`` is pure."""

from __future__ import annotations

import os
import re
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
_LEAST = 5
_WORDY = {"waits now for", "stall", "last error", "why", "what"}  # headings of columns that answer the question
_ROOMY = {"position", "waited", "a step", "batch", "worker", "skipped", "open", "throttled", "retries", "folder", "lead"}
_NARROW, _LOW = 70, 16  # columns, lines: with less a screen has no room for what is roomy, nor for blank lines
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
    """As aligned columns, at most ``width`` wide: names are shortened first, then what is waited for."""
    if width < _NARROW:
        kept = [at for at, heading in enumerate(rows[0]) if heading not in _ROOMY]
        rows = [tuple(row[at] for at in kept) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    room = width - _GAP * (len(widths) - 1)
    wordy = [at for at, heading in enumerate(rows[0]) if heading in _WORDY]
    names = [at for at in range(len(widths)) if at not in wordy]
    for columns, least in ((names, 12), (wordy, 24), (names, 8), (wordy, 13), (range(len(widths)), _LEAST)):
        while sum(widths) > room and (widest := max(columns, key=lambda at: widths[at], default=None)) is not None:
            if widths[widest] <= least:
                break
            widths[widest] -= 1
    lines = (
        (" " * _GAP).join(shortened(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
    return [line[:width] for line in lines]


def screen(verdict: Mapping[str, Any] | None, head: str, tables: Tables, totals: Sequence[str], width: int, height: int) -> list[Text]:
    """What fits ``height`` lines: the verdict, a row of each table from the first one on, then more of them; totals come last.

    What finds no room is said.
    """
    low = height < _LOW
    lines = _said(verdict, width, low=low)
    if low:
        totals = [head, *totals]
    else:
        lines.append(Text(shortened(head, width), style="dim"))
    filled = [(name, rows) for name, rows in tables if len(rows) > 1]
    left, above = height - len(lines), [] if low else [Text("")]
    sizes = [len(rows) - 1 for _, rows in filled]
    shown = _shares(sizes, left, 1 + len(above))
    all_fits = all(shown) and _cost(shown, sizes, 1 + len(above)) + len(totals) <= left
    if not all_fits:
        shown = _shares(sizes, left - 1, 1 + len(above))
    for (_, rows), count in zip(filled, shown, strict=True):
        if not count:
            continue
        more = len(rows) - 1 - count
        made = fitted(rows[: count + 1], width)
        lines += [*above, Text(made[0], style="bold"), *map(Text, made[1:])]
        if more:
            lines.append(Text(f"… {more} more row{'' if more == 1 else 's'}", style="dim"))
    room = max(0, height - len(lines) - (not all_fits))
    lines += [Text(shortened(text, width), style="dim") for text in totals[:room]]
    hidden = [name for (name, _), count in zip(filled, shown, strict=True) if not count] + ["totals"] * (len(totals) > room)
    if hidden:
        lines.append(Text(shortened(f"… no room for: {', '.join(hidden)}", width), style="dim"))
    return lines[:height]


def _said(verdict: Mapping[str, Any] | None, width: int, *, low: bool) -> list[Text]:
    """The sentence with its severity in words and colour, what to do, what to type."""
    if verdict is None:
        return []
    mark, style = _MARKS.get(str(verdict.get("severity")), ("", ""))
    lines = wrap(f"{mark}  {verdict['sentence']}", width, max_lines=3 - low, placeholder=" …") or [mark]
    said = [Text(line, style=style) for line in lines]
    if verdict.get("do"):
        said += [Text(line) for line in wrap(f"do: {verdict['do']}", width, max_lines=4 - 2 * low, placeholder=" …")]
    if verdict.get("line"):
        said += [Text(line, style="bold") for line in _typed(f"type: {verdict['line']}", width)]
    return said


def _typed(text: str, width: int) -> list[str]:
    """Whole, as a shell takes it: half a command is another one. A line never ends within quotes."""
    lines: list[str] = []
    for word in re.findall(r"(?:'[^']*'|[^\s'])+", text):
        if lines and len(lines[-1]) + 1 + len(word) <= width - 2:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return [*(f"{line} \\" for line in lines[:-1]), *lines[-1:]]


def _cost(shown: Sequence[int], sizes: Sequence[int], frame: int) -> int:
    """Lines: a table costs ``frame`` beside its rows, and one where rows are left out."""
    return sum(frame + count + (count < size) for count, size in zip(shown, sizes, strict=True) if count)


def _shares(sizes: Sequence[int], height: int, frame: int) -> list[int]:
    """How many rows of each table are shown."""
    shown = [0] * len(sizes)
    for wanted in range(1, max(sizes, default=0) + 1):
        for at, size in enumerate(sizes):
            tried = [*shown[:at], min(size, wanted), *shown[at + 1 :]]
            if wanted <= size and _cost(tried, sizes, frame) <= height:
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
