"""``forebay ps``: all sidecars of this user on this node."""

from __future__ import annotations

import os
from typing import Any

import click

from forebay_proxy.cli.client import SidecarClient, token_of
from forebay_proxy.cli.options import json_option
from forebay_proxy.cli.output import notice, say_json, show_table
from forebay_proxy.core.errors import ForebayError
from forebay_proxy.core.quantities import format_duration, format_size
from forebay_proxy.node.runfile import RunDirectory, RunFile

__all__ = ["ps"]

_ANSWER_S = 2.0  # one that hangs is listed too, and soon


@click.command()
@json_option
def ps(as_json: bool) -> int:
    """List the sidecars of your user on this node: where, since when, how much they hold, who reads.

    \b
    Examples:
      forebay ps
      forebay ps --json | jq -r '.[].url'
    """
    found = [(record, _status(record)) for record in RunDirectory.of(os.environ).live()]
    if as_json:
        say_json([_json(record, status) for record, status in found])
        return 0
    if not found:
        notice("no sidecar of yours runs on this node")
        return 0
    show_table([("sidecar", "pid", "up", "started by", "cache", "readers", "directory"), *(_row(*each) for each in found)])
    return 0


def _status(record: RunFile) -> dict[str, Any] | None:
    try:
        return SidecarClient(record.url, token=token_of(os.environ)).status(_ANSWER_S)
    except ForebayError:
        return None


def _json(record: RunFile, status: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "url": record.url, "socket": record.socket, "pid": record.pid, "started_by": f"forebay {record.started_by}",
        "cache_dir": record.cache_dir, "answers": status is not None,
    }  # fmt: skip


def _row(record: RunFile, status: dict[str, Any] | None) -> tuple[str, ...]:
    up, cache, readers = "does not answer", "", ""
    if status is not None:
        up = format_duration(status["uptime_s"])
        cache = f"{format_size(status['cache']['stored_bytes'])} of {format_size(status['cache']['effective_bytes'])}"
        readers = str(len(status["readers"]))
    return record.url, str(record.pid), up, f"forebay {record.started_by}", cache, readers, record.cache_dir
