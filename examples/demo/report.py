"""How the demo speaks: headings, tables, one status line while it works. Rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console
from rich.status import Status
from rich.table import Table

__all__ = ["Report", "Row", "Say", "megabytes"]


class Say(Protocol):
    """Replaces the status line."""

    def __call__(self, text: str) -> None: ...


@dataclass(frozen=True)
class Row:
    """One way in, measured: the trainer's epoch, and what the origin was asked meanwhile. ``baseline`` is the row it is compared with."""

    name: str
    epoch: dict[str, Any]
    origin_bytes: int | None
    origin_requests: int | None
    baseline: Row | None = None

    @property
    def rate(self) -> float:
        """Samples a second."""
        return float(self.epoch["samples"] / self.epoch["epoch_s"])

    def gain(self) -> str:
        if self.baseline is None or not self.baseline.rate:
            return ""
        times = self.rate / self.baseline.rate
        return f"{times:.2f}x" if times > NO_GAIN else f"{times:.2f}x: no gain"


# Two runs of the same thing differ by a few percent; less than this is not a gain.
NO_GAIN = 1.1


def megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:,.0f} MB"


class Report:
    """Everything the demo prints."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = max(self.console.width, 120)  # a pipe has no width worth folding tables for

    def heading(self, number: str, text: str) -> None:
        self.console.print(f"\n[bold cyan]{number}[/]  [bold]{text}[/]")

    def line(self, text: str) -> None:
        self.console.print(f"   {text}", soft_wrap=True)

    def facts(self, pairs: Sequence[tuple[str, str]]) -> None:
        table = Table.grid(padding=(0, 2))
        for name, value in pairs:
            table.add_row(f"   [dim]{name}[/]", value)
        self.console.print(table)

    def rows(self, rows: Sequence[Row]) -> None:
        table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
        table.add_column("   way in", no_wrap=True)
        for name in ("first batch", "samples/s", "gain", "trainer waited", "origin sent", "requests"):
            table.add_column(f" {name}", justify="right", no_wrap=True)
        for row in rows:
            table.add_row(f"   {row.name}", *_cells(row))
        self.console.print(table)

    @contextmanager
    def working(self, text: str) -> Iterator[Say]:
        """A status line that ``say`` changes; it is gone when the block ends. Without a terminal: one line at the start."""
        if not self.console.is_terminal:
            self.console.print(f"   … {text}", soft_wrap=True)
            yield lambda text: None
            return
        started = time.monotonic()
        with Status(f"{text} …", console=self.console) as status:
            yield lambda text: status.update(f"{text}  [dim]{time.monotonic() - started:.0f} s[/]")


def _cells(row: Row) -> list[str]:
    epoch = row.epoch
    if epoch["error"]:
        return ["-", f"[red]failed after {epoch['samples']:,} samples[/]", "", "", megabytes(row.origin_bytes), ""]
    waited = f"{epoch['waited_s']:.1f} s of {epoch['epoch_s']:.1f}"
    requests = "-" if row.origin_requests is None else str(row.origin_requests)
    return [f"{epoch['first_batch_s']:.2f} s", f"{row.rate:,.0f}", row.gain(), waited, megabytes(row.origin_bytes), requests]
