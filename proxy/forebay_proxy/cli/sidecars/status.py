"""``forebay status``: how the sidecar is, once or until interrupted."""

from __future__ import annotations

import os
import time
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from forebay_proxy.cli.client import SidecarClient
from forebay_proxy.cli.locate import locate
from forebay_proxy.cli.options import json_option, url_option
from forebay_proxy.cli.output import is_terminal, plain_table, say, say_json
from forebay_proxy.cli.sidecars.status_report import error_rows, origin_rows, plan_rows, rank_rows, reader_rows, status_rows

__all__ = ["status"]

_READERS_SHOWN = 20  # a screen; --json has them all


@click.command()
@json_option
@click.option("--watch", is_flag=True, help="Show it again every interval until Ctrl-C.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, metavar="SECONDS", help="How often, with --watch."
)
@url_option
def status(as_json: bool, watch: bool, interval: float, url: str | None) -> int:
    """Show how the running sidecar is: what training and readers wait for, room, hits, origins, the last errors, and which reader reads
    which shard.

    \b
    Examples:
      forebay status
      forebay status --watch
      forebay status --json | jq .cache
    """
    sidecar = locate(url, os.environ)
    if watch:
        return _watch(sidecar, interval, as_json=as_json)
    _show(sidecar.status(), as_json=as_json)
    return 0


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        say_json(found)
    elif is_terminal():
        Console().print(_screen(found))
    else:
        for line in _plain(found):
            say(line)


def _watch(sidecar: SidecarClient, interval: float, *, as_json: bool) -> int:
    if as_json or not is_terminal():
        while True:
            _show(sidecar.status(), as_json=as_json)
            time.sleep(interval)
    with Live(_screen(sidecar.status()), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(_screen(sidecar.status()), refresh=True)


def _plain(found: dict[str, Any]) -> list[str]:
    lines = plain_table(status_rows(found))
    for rows in _tables(found):
        lines += ["", *plain_table(rows)] if rows else []
    return lines


def _tables(found: dict[str, Any]) -> tuple[list[tuple[str, ...]], ...]:
    return rank_rows(found), origin_rows(found), error_rows(found), reader_rows(found), plan_rows(found)


def _screen(found: dict[str, Any]) -> Group:
    parts: list[Table | Text] = [_grid(status_rows(found), found["state"] == "ready")]
    for rows in _tables(found):
        if rows:
            parts += [Text(), _columns(rows)]
    return Group(*parts)


def _grid(rows: list[tuple[str, ...]], healthy: bool) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, text in rows:
        style = {"sidecar": "green" if healthy else "yellow", "notice": "yellow", "trouble": "yellow"}.get(name, "")
        grid.add_row(Text(name, style="bold"), Text(text, style=style))
    return grid


def _columns(rows: list[tuple[str, ...]]) -> Table:
    heading, *rest = rows
    table = Table(*heading, box=None, header_style="bold", padding=(0, 2, 0, 0))
    for row in rest[:_READERS_SHOWN]:
        table.add_row(*map(Text, row))
    if len(rest) > _READERS_SHOWN:
        table.add_row(Text(f"and {len(rest) - _READERS_SHOWN} more"))
    return table
