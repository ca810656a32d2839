"""``forebay config``: the settings, and where each comes from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from pydantic import SecretStr

from forebay_proxy.cli.client import locate
from forebay_proxy.cli.options import config_option, json_option, load_settings, settings_options, url_option
from forebay_proxy.cli.output import notice, say_json, show_table
from forebay_proxy.config.settings import Settings, default_text, env_name, value_text
from forebay_proxy.config.settings import as_json as as_json_values
from forebay_proxy.core.shard import shown_set

__all__ = ["config"]


@click.group()
def config() -> None:
    """Look at the settings."""


@config.command()
@settings_options
@config_option
@json_option
@click.option("--running", is_flag=True, help="Those of the running sidecar, and which of them are not yours.")
@url_option
def show(config: Path | None, as_json: bool, running: bool, url: str | None, **flags: Any) -> int:
    """Print every setting, its value, and where the value comes from: flag, environment, file or default.

    \b
    Examples:
      forebay config show
      forebay config show --cache-size 75%
      forebay config show --json
      forebay config show --running
    """
    settings = load_settings(flags, config)
    if running:
        found, own = locate(url, os.environ).status().get("settings", {}), as_json_values(settings)
        if as_json:
            say_json(found)
            return 0
        rows = [
            (name, _told(name, each["value"]), each["source"], _told(name, mine) if (mine := own[name]["value"]) != each["value"] else "")
            for name, each in found.items()
            if name in own
        ]
        show_table([("setting of the sidecar", "value", "from", "differs from yours"), *rows])
        return 0
    for text in settings.notices:
        notice(text)
    if as_json:
        say_json(as_json_values(settings))
        return 0
    rows = [(name, _shown(settings, name), settings.source_of(name), env_name(name)) for name in Settings.model_fields]
    show_table([("setting", "value", "from", "variable"), *rows])
    return 0


def _told(name: str, value: Any) -> str:
    """A value as the sidecar's JSON has it."""
    if value is None or value == []:
        return f"({default_text(name)})"
    return ", ".join(map(str, value)) if isinstance(value, list) else value_text(value)


def _shown(settings: Settings, name: str) -> str:
    value = getattr(settings, name)
    if value is None or value == ():
        return f"({default_text(name)})"
    if name == "set":
        return ", ".join(map(shown_set, value))
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, SecretStr):
        return "(set)"
    return "(off)" if value == "" else value_text(value)
