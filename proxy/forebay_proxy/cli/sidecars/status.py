"""``forebay status``: how the sidecar is."""

from __future__ import annotations

import os
from typing import Any

import click

from forebay_proxy.cli.locate import locate
from forebay_proxy.cli.options import json_option, url_option
from forebay_proxy.cli.output import is_terminal, plain_table, say, say_json
from forebay_proxy.cli.sidecars.status_report import error_rows, origin_rows, plan_rows, rank_rows, reader_rows, status_rows

__all__ = ["status"]

_ROWS_SHOWN = 20  # a screen; a pipe and --json have them all


@click.command()
@json_option
@url_option
def status(as_json: bool, url: str | None) -> int:
    """Show how the running sidecar is: what training and readers wait for, room, hits, origins, the last errors, and which reader reads
    which shard.

    \b
    Examples:
      forebay status
      watch forebay status
      forebay status --json | jq .cache
    """
    found = locate(url, os.environ).status()
    if as_json:
        say_json(found)
    else:
        for line in _lines(found):
            say(line)
    return 0


def _lines(found: dict[str, Any]) -> list[str]:
    """All of it; for who watches a terminal, the first rows of each table."""
    lines = plain_table(status_rows(found))
    for rows in (rank_rows(found), origin_rows(found), error_rows(found), reader_rows(found), plan_rows(found)):
        shown = rows[: _ROWS_SHOWN + 1] if is_terminal() else rows
        lines += ["", *plain_table(shown)] if shown else []
        lines += [f"and {len(rows) - len(shown)} more"] if len(rows) > len(shown) else []
    return lines
