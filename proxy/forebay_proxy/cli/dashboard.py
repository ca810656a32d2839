"""``forebay dashboard``: the Grafana board, the alerts and their runbook, as this version's files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click

import forebay_proxy
from forebay_proxy.cli.output import say, write_whole
from forebay_proxy.core.errors import ConfigError

__all__ = ["dashboard"]

_FILES = Path(forebay_proxy.__file__).parent / "dashboard"
_BOARD = "forebay.json"
# What the provisioning files say, for deploy/docker/compose.yaml. A string of JSON is one of YAML.
_FOLDER, _PROMETHEUS = "/var/lib/grafana/dashboards", "http://forebay:9090"


@click.group()
def dashboard() -> None:
    """Get what Prometheus and Grafana need."""


@dashboard.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option("--prometheus", default="http://127.0.0.1:9090", show_default=True, help="Where Grafana finds Prometheus.")
@click.option("--force", is_flag=True, help="Replace files that differ.")
def export(directory: Path | None, prometheus: str, force: bool) -> int:
    """Write the Grafana board, the alerts, their runbook and the provisioning files to DIRECTORY; without it, print the board.

    \b
    Examples:
      forebay dashboard export > forebay.json   then Grafana: Dashboards, New, Import
      forebay dashboard export /etc/forebay     prometheus.yml scrapes; GF_PATHS_PROVISIONING=/etc/forebay/provisioning
    """
    if directory is None:
        click.echo((_FILES / _BOARD).read_text("utf-8"), nl=False)
        return 0
    texts = {directory / name: text for name, text in _texts(directory.resolve(), prometheus)}
    yours = [path for path, text in texts.items() if path.is_file() and path.read_text("utf-8", "replace") != text]
    if yours and not force:
        raise ConfigError(f"{yours[0]} exists and differs", next_step="name another directory, or replace it with --force")
    write_whole(texts, next_step="name another directory")
    for target in texts:
        say(str(target))
    return 0


def _texts(directory: Path, prometheus: str) -> Iterator[tuple[Path, str]]:
    for path in sorted(_FILES.rglob("*.*")):
        text = path.read_text("utf-8")
        if path.parent != _FILES:  # provisioning/…
            text = text.replace(_FOLDER, json.dumps(str(directory))).replace(_PROMETHEUS, json.dumps(prometheus))
        yield path.relative_to(_FILES), text
