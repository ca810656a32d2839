"""How a warm-up shows itself: a bar on a terminal, a line every few seconds elsewhere, JSON for programs, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from forebay_proxy.sizes import format_size
from forebay_proxy.verbs.output import notice, say_json

__all__ = ["Bar", "Json", "Lines", "Quiet", "View"]

_LINE_EVERY_S = 5.0  # a log of an hour stays readable


class View(AbstractContextManager["View"], Protocol):
    """Told about progress: shards and bytes done so far, of how many shards, and every raw event."""

    def event(self, event: dict[str, Any]) -> None: ...
    def progress(self, done_shards: int, shards: int, done_bytes: int) -> None: ...


class Quiet:
    """Shows nothing."""

    def event(self, event: dict[str, Any]) -> None: ...

    def progress(self, done_shards: int, shards: int, done_bytes: int) -> None: ...

    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


class Json(Quiet):
    """Every event as it came, one line each, on stdout."""

    def event(self, event: dict[str, Any]) -> None:
        say_json(event)


class Lines(Quiet):
    """A line on stderr every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock() + _LINE_EVERY_S

    def progress(self, done_shards: int, shards: int, done_bytes: int) -> None:
        if self._clock() >= self._next:
            self._next = self._clock() + _LINE_EVERY_S
            notice(f"{done_shards} of {shards} shards, {format_size(done_bytes)}")


class Bar(Quiet):
    """A bar of shards with bytes and speed, on stderr."""

    def __init__(self, console: Console) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("shards"), TextColumn("{task.description}"), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=None)
        self._begun = time.monotonic()

    def progress(self, done_shards: int, shards: int, done_bytes: int) -> None:
        rate = done_bytes / max(0.001, time.monotonic() - self._begun)
        self._bar.update(self._task, completed=done_shards, total=shards, description=f"{format_size(done_bytes)}, {format_size(rate)}/s")

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()
