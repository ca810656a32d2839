"""How a verb that takes long tells of itself: how far it is, and which shards failed of what."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from forebay_proxy.cli.output import notice, say_json
from forebay_proxy.core.quantities import format_duration, format_size

__all__ = ["Failures", "ProgressView"]

_LINE_EVERY_S = 5.0  # a log of an hour stays readable


class ProgressView:
    """A bar on a terminal, a line every few seconds elsewhere; with ``as_json`` only the events, with ``quiet`` nothing. Use ``with``."""

    def __init__(self, *, quiet: bool, as_json: bool, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._silent = quiet or as_json
        self._as_json = as_json
        self._clock = clock
        self._begun = clock()
        self._next = self._begun + _LINE_EVERY_S
        console = console or Console(stderr=True)
        self._bar = None
        if console.is_terminal and not self._silent:
            self._bar = Progress(BarColumn(), TextColumn("{task.description}"), console=console, transient=True)
            self._task = self._bar.add_task("", total=None)

    def event(self, event: Mapping[str, Any]) -> None:
        """Something happened, as programs are told it: one line on stdout."""
        if self._as_json:
            say_json(dict(event))

    def shards(self, done: int, shards: int, done_bytes: int) -> None:
        """What is left is estimated by the shards that are done: nobody knows how large the others are."""
        seconds = self._clock() - self._begun
        told = f"{done} of {shards} shards, {format_size(done_bytes)}, {_rate(done_bytes, seconds)}"
        if 0 < done < shards:
            left_s = seconds * (shards - done) / done
            told += f", about {format_size(done_bytes * shards // done)} in all, {format_duration(left_s)} left"
        self._show(done, shards, told)

    def tasks(self, done: int, tasks: int, before: int, told: str) -> None:
        """``before``: how many were done when this run began, which say nothing of how long the others take."""
        seconds, here = self._clock() - self._begun, done - before
        left = f", about {format_duration(seconds * (tasks - done) / here)} left" if here and done < tasks else ""
        self._show(done, tasks, told + left)

    def bytes(self, done: int, in_all: int, what: str) -> None:
        """``what`` was done with them."""
        seconds = self._clock() - self._begun
        left = f", {format_duration(seconds * (in_all - done) / done)} left" if 0 < done < in_all else ""
        self._show(done, in_all, f"{format_size(done)} of {format_size(in_all)} {what}, {_rate(done, seconds)}{left}")

    def _show(self, done: int, in_all: int, text: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=in_all, description=text)
        elif not self._silent and self._clock() >= self._next:
            self._next = self._clock() + _LINE_EVERY_S
            notice(text)

    def __enter__(self) -> ProgressView:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()


def _rate(count: int, seconds: float) -> str:
    return f"{format_size(int(count / max(0.001, seconds)))}/s"


_NAMED = 3  # shards of each cause; --json names all


class Failures:
    """Equal causes are one failure, whichever shards have it."""

    def __init__(self) -> None:
        self._shards: dict[tuple[str, str], list[str]] = {}  # (cause, next step) -> shards

    def __len__(self) -> int:
        return sum(map(len, self._shards.values()))

    def add(self, event: Mapping[str, Any]) -> None:
        """An event of a shard that failed; the first one of its cause is told now."""
        shard, error, step = str(event["shard"]), str(event.get("error", "")), str(event.get("next_step", ""))
        key = str(event.get("cause", error)), step
        same = self._shards.setdefault(key, [])
        same.append(shard)
        if len(same) == 1:
            line = error if shard in error else f"{shard}: {error}"  # the sidecar's own messages begin with the shard
            notice(f"failed: {line}{f'; {step}' if step else ''}")

    def summary(self) -> None:
        """The end: of each cause that more than one shard had, how many and the first of them."""
        for (cause, step), shards in self._shards.items():
            if len(shards) > 1:
                more = f" and {len(shards) - _NAMED} more (--json names each)" if len(shards) > _NAMED else ""
                notice(f"{len(shards)} shards failed alike ({', '.join(shards[:_NAMED])}{more}): {cause}{f'; {step}' if step else ''}")
