"""``forebay set``: lists the declared sets, and ends them."""

from __future__ import annotations

import os

import click

from forebay_proxy.cli.locate import locate
from forebay_proxy.cli.options import json_option, url_option
from forebay_proxy.cli.output import notice, say, say_json, show_table
from forebay_proxy.cli.sidecars.status_report import failure_lines

__all__ = ["sets"]


@click.group("set")
def sets() -> None:
    """List or end the declared sets of the running sidecar.

    \b
    Examples:
      forebay set ls
      forebay set rm 's3://bucket/shard-{000000..000999}.tar'
    """


@sets.command("ls")
@json_option
@url_option
def ls(as_json: bool, url: str | None) -> int:
    """List the declared sets, how much of each is stored, and what goes on."""
    found = locate(url, os.environ).status().get("sets", [])
    if as_json:
        say_json(found)
    elif found:
        show_table([("shards", "here", "state", "set"), *(_row(each) for each in found)])
        for each in found:
            for line in failure_lines(each):
                notice(f"{each['set']}: {line}")
    return 0


@sets.command("rm")
@click.argument("patterns", nargs=-1, required=True)
@url_option
def rm(patterns: tuple[str, ...], url: str | None) -> int:
    """End the declared sets PATTERNS.

    PATTERNS are as 'forebay set ls' writes them. Their stored shards stay until other shards need the room. A set of 'serve --set' comes
    back when the sidecar is started again.
    """
    sidecar = locate(url, os.environ)
    for pattern in patterns:
        sidecar.remove_set(pattern)
        say(f"{pattern} is kept filled no longer; 'forebay evict' lets go of what is here of it")
    return 0


def _row(each: dict[str, object]) -> tuple[str, ...]:
    complete = each.get("complete")
    return str(each["shards"]), "-" if complete is None else str(complete), str(each["state"]), str(each["set"])
