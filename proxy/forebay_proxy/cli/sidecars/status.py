"""``forebay status``: how the sidecar is, once or until interrupted."""

from __future__ import annotations

import os
import time
from typing import Any

import click
from rich.live import Live
from rich.text import Text

from forebay_proxy.cli.client import SidecarClient
from forebay_proxy.cli.locate import locate
from forebay_proxy.cli.options import json_option, url_option
from forebay_proxy.cli.output import is_terminal, plain_table, say, say_json
from forebay_proxy.cli.sidecars.status_report import error_rows, origin_rows, plan_rows, rank_rows, reader_rows, status_rows

__all__ = ["status"]

_ROWS_SHOWN = 20  # a screen; a pipe and --json have them all


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
    else:
        for line in _lines(found):
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


def _screen(found: dict[str, Any]) -> Text:
    return Text("\n".join(_lines(found)), no_wrap=True, overflow="ellipsis")


def _lines(found: dict[str, Any]) -> list[str]:
    """All of it; for who watches a terminal, the first rows of each table."""
    lines = plain_table(status_rows(found))
    for rows in (rank_rows(found), origin_rows(found), error_rows(found), reader_rows(found), plan_rows(found)):
        shown = rows[: _ROWS_SHOWN + 1] if is_terminal() else rows
        lines += ["", *plain_table(shown)] if shown else []
        lines += [f"and {len(rows) - len(shown)} more"] if len(rows) > len(shown) else []
    return lines
