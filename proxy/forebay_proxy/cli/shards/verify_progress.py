"""How a verification shows itself: a bar on a terminal, a line every few seconds elsewhere, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from forebay_proxy.cli.output import notice
from forebay_proxy.core.quantities import format_size

__all__ = ["VerifyBar", "VerifyLines", "VerifyQuiet", "VerifyView"]

_LINE_EVERY_S = 5.0  # a log of half an hour stays readable


class VerifyView(AbstractContextManager["VerifyView"], Protocol):
    """Told how many bytes are done, of how many."""

    def progress(self, done_bytes: int, total_bytes: int) -> None: ...


class VerifyQuiet:
    """Shows nothing."""

    def progress(self, done_bytes: int, total_bytes: int) -> None: ...

    def __enter__(self) -> VerifyQuiet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


class VerifyLines(VerifyQuiet):
    """A line on stderr every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock() + _LINE_EVERY_S

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        if self._clock() >= self._next:
            self._next = self._clock() + _LINE_EVERY_S
            notice(f"{format_size(done_bytes)} of {format_size(total_bytes)} verified")


class VerifyBar(VerifyQuiet):
    """A bar of bytes with speed and time left, on stderr."""

    def __init__(self, console: Console) -> None:
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=None)

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        self._bar.update(self._task, completed=done_bytes, total=total_bytes)

    def __enter__(self) -> VerifyBar:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()
