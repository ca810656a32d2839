"""How a warm-up shows itself: a bar on a terminal, a line every few seconds elsewhere, JSON for programs, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from forebay_proxy.cli.output import notice, say_json
from forebay_proxy.core.quantities import format_duration, format_size

__all__ = ["WarmBar", "WarmJson", "WarmLines", "WarmQuiet", "WarmView"]

_LINE_EVERY_S = 5.0  # a log of an hour stays readable


class WarmView(AbstractContextManager["WarmView"], Protocol):
    """Told about progress: shards and bytes done so far, of how many shards, and every raw event."""

    def event(self, event: dict[str, Any]) -> None: ...
    def progress(self, done_shards: int, shards: int, done_bytes: int) -> None: ...


class WarmQuiet:
    """Shows nothing."""

    def event(self, event: dict[str, Any]) -> None: ...

    def progress(self, done_shards: int, shards: int, done_bytes: int) -> None: ...

    def __enter__(self) -> WarmQuiet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


class WarmJson(WarmQuiet):
    """Every event as it came, one line each, on stdout."""

    def event(self, event: dict[str, Any]) -> None:
        say_json(event)


class WarmLines(WarmQuiet):
    """A line on stderr every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._next = self._begun + _LINE_EVERY_S

    def progress(self, done_shards: int, shards: int, done_bytes: int) -> None:
        now = self._clock()
        if now >= self._next:
            self._next = now + _LINE_EVERY_S
            notice(f"{done_shards} of {shards} shards, {_pace(done_shards, shards, done_bytes, now - self._begun)}")


class WarmBar(WarmQuiet):
    """A bar of shards with bytes, speed and time left, on stderr."""

    def __init__(self, console: Console) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("shards"), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=None)
        self._begun = time.monotonic()

    def progress(self, done_shards: int, shards: int, done_bytes: int) -> None:
        pace = _pace(done_shards, shards, done_bytes, time.monotonic() - self._begun)
        self._bar.update(self._task, completed=done_shards, total=shards, description=pace)

    def __enter__(self) -> WarmBar:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()


def _pace(done_shards: int, shards: int, done_bytes: int, seconds: float) -> str:
    """Bytes, speed, and what is left by the shards that are done: nobody knows how large the others are."""
    told = f"{format_size(done_bytes)}, {format_size(int(done_bytes / max(0.001, seconds)))}/s"
    if not 0 < done_shards < shards:
        return told
    left, in_all = seconds * (shards - done_shards) / done_shards, done_bytes * shards // done_shards
    return f"{told}, about {format_size(in_all)} in all, {format_duration(left)} left"
