"""``forebay stop``: end the sidecars of this user on this node, in good order."""

from __future__ import annotations

import os
import signal
import time

import click

from forebay_proxy.cli.options import url_option
from forebay_proxy.cli.output import notice, say
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.node.runfile import RunDirectory, RunFile

__all__ = ["stop"]

_LOOK_S = 0.1
_WITHIN_S = 40.0  # a drain of 20 s, and what an end may take besides


@click.command()
@click.option("--all", "everything", is_flag=True, help="Every sidecar of yours on this node.")
@url_option
def stop(everything: bool, url: str | None) -> int:
    """End the running sidecar: bodies on their way may end, what is stored stays for the next one.

    \b
    Examples:
      forebay stop
      forebay stop --all
      forebay stop --url http://127.0.0.1:7071

    Only sidecars of your own user on this node; 'forebay ps' lists them. Commands that still read go on from the origin.
    """
    live = RunDirectory.of(os.environ).live()
    chosen = live if everything else _chosen(live, url or os.environ.get("FOREBAY_URL", ""))
    if not chosen:
        raise ConfigError("no sidecar of yours runs on this node", next_step="there is nothing to end")
    for record in chosen:
        os.kill(record.pid, signal.SIGTERM)  # run files of others, and of processes that are gone, are not listed
        os.kill(record.pid, signal.SIGCONT)  # one that is stopped would not take note of it
    left = [record for record in chosen if not _ended(record)]
    for record in chosen:
        if record not in left:
            say(f"the sidecar at {record.url} (pid {record.pid}) has ended")
    for record in left:
        step = f"'kill -9 {record.pid}' loses nothing that is stored"
        notice(f"the sidecar at {record.url} (pid {record.pid}) has not ended within {_WITHIN_S:g} s; {step}")
    return ExitCode.PART_FAILED if left else ExitCode.DONE


def _chosen(live: list[RunFile], url: str) -> list[RunFile]:
    """The one that was named, else the only one. Raises ``ConfigError`` where that is not certain."""
    if url:
        found = [record for record in live if url.rstrip("/") in (record.url, f"unix:{record.socket}")]
        if not found:
            raise ConfigError(f"no sidecar of yours runs at {url} on this node", next_step="'forebay ps' lists those that do")
        return found
    if len(live) > 1:
        urls = ", ".join(record.url for record in live)
        raise ConfigError(f"{len(live)} sidecars of yours run on this node: {urls}", next_step="name one with --url, or say --all")
    return live


def _ended(record: RunFile) -> bool:
    until = time.monotonic() + _WITHIN_S
    while record.is_alive():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_S)
    return True
