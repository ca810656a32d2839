"""``forebay env``: lines for a shell's ``eval`` that lead stock WebDataset to the sidecar."""

from __future__ import annotations

import os
import shlex

import click

from forebay_proxy.cli.locate import locate
from forebay_proxy.cli.options import url_option
from forebay_proxy.cli.output import is_terminal, notice, say
from forebay_proxy.cli.run.environment import rewrite_variables, traps
from forebay_proxy.core.quantities import format_size

__all__ = ["env"]


@click.command()
@url_option
def env(url: str | None) -> int:
    """Print GOPEN_REWRITE and NO_PROXY, so that an unchanged WebDataset reads through the running sidecar.

    \b
    Examples:
      eval "$(forebay env)"          sh, bash, zsh
      forebay env | source           fish

    On a terminal it says in three lines what it would set; else stdout holds nothing but lines for eval. Exit code 2 when no sidecar is
    running. Limits of this way in: no request headers travel, no plan is announced, one curl process a shard, and WebDataset refuses all of
    it to a program that sets its utils.enforce_security; and nobody sees what the training waits for (fb.stalls()). 'forebay run' and
    forebay_loader have fewer.
    """
    sidecar = locate(url, os.environ)
    base = sidecar.address if sidecar.address.startswith("http") else str(sidecar.status()["url"])
    for text in traps(os.environ):
        notice(text)
    variables = rewrite_variables(base, os.environ)
    if is_terminal():
        rules = variables["GOPEN_REWRITE"]
        say(f"GOPEN_REWRITE   {rules.count(';') + 1} rules ({format_size(len(rules))}) that lead WebDataset's shards to {base}")
        say(f"NO_PROXY        {variables['NO_PROXY']} (and no_proxy)")
        say('to set them:    eval "$(forebay env)"')
        return 0
    for name, value in variables.items():
        say(f"export {name}={shlex.quote(value)}")
    return 0
