"""``forebay env``: lines for a shell's ``eval`` that lead stock WebDataset to the sidecar, and what becomes of a URL."""

from __future__ import annotations

import os
import shlex

import click

from forebay_proxy.cli.locate import locate
from forebay_proxy.cli.options import url_option
from forebay_proxy.cli.output import is_terminal, notice, say, show_table
from forebay_proxy.cli.run.check import check_rows
from forebay_proxy.cli.run.environment import rewrite_variables, traps
from forebay_proxy.core.quantities import format_size

__all__ = ["assignment", "env"]


@click.command()
@click.option("--shell", type=click.Choice(["sh", "fish"]), default="sh", show_default=True, help="Whose syntax to write.")
@click.option(
    "--check", metavar="URL", help="Instead: show what becomes of URL (or a 'pipe:' command, or the first of a pattern) in each way in."
)
@url_option
def env(shell: str, check: str | None, url: str | None) -> int:
    """Print GOPEN_REWRITE and NO_PROXY, so that an unchanged WebDataset reads through the running sidecar.

    \b
    Examples:
      eval "$(forebay env)"                     sh, bash, zsh
      forebay env --shell fish | source         fish
      forebay env --check 'pipe:aws s3 cp s3://bucket/shard-000000.tar -'

    On a terminal it says in three lines what it would set; else stdout holds nothing but lines for eval. Exit code 2 when no sidecar is
    running. Limits of this way in: no request headers travel, no plan is announced, one curl process a shard, and WebDataset refuses all of
    it to a program that sets its utils.enforce_security; and nobody sees what the training waits for (fb.stalls()). 'forebay run' and
    forebay_loader have fewer.
    """
    sidecar = locate(url, os.environ)
    base = sidecar.address if sidecar.address.startswith("http") else str(sidecar.status()["url"])
    if check is not None:
        show_table(check_rows(check, base, os.environ))
        return 0
    for text in traps(os.environ):
        notice(text)
    variables = rewrite_variables(base, os.environ)
    if is_terminal():
        rules = variables["GOPEN_REWRITE"]
        say(f"GOPEN_REWRITE   {rules.count(';') + 1} rules ({format_size(len(rules))}) that lead WebDataset's shards to {base}")
        say(f"NO_PROXY        {variables['NO_PROXY']} (and no_proxy)")
        say({"sh": 'to set them:    eval "$(forebay env)"', "fish": "to set them:    forebay env --shell fish | source"}[shell])
        return 0
    for name, value in variables.items():
        say(assignment(shell, name, value))
    return 0


def assignment(shell: str, name: str, value: str) -> str:
    """One line that exports a variable, its value quoted for that shell."""
    if shell == "fish":
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"set -gx {name} '{quoted}'"
    return f"export {name}={shlex.quote(value)}"
