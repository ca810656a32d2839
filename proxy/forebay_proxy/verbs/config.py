"""``forebay config``: what is configured, and by whom."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from pydantic import SecretStr

from forebay_proxy.settings import Settings, default_text, env_name, value_text
from forebay_proxy.sizes import ShareOfDisk, TotalBytes
from forebay_proxy.verbs.options import config_option, json_option, load_settings, settings_options
from forebay_proxy.verbs.output import notice, plain_table, say, say_json

__all__ = ["config"]


@click.group()
def config() -> None:
    """Look at the settings."""


@config.command()
@settings_options
@config_option
@json_option
def show(config: Path | None, as_json: bool, **flags: Any) -> int:
    """Print every setting, its value, and where the value comes from: flag, environment, file or default.

    \b
    Examples:
      forebay config show
      forebay config show --cache-size 75%
      forebay config show --json
    """
    settings = load_settings(flags, config)
    for text in settings.notices:
        notice(text)
    if as_json:
        say_json({name: {"value": _plain(getattr(settings, name)), "source": settings.source_of(name)} for name in Settings.model_fields})
        return 0
    rows = [(name, _shown(settings, name), settings.source_of(name), env_name(name)) for name in Settings.model_fields]
    for line in plain_table([("setting", "value", "from", "variable"), *rows]):
        say(line)
    _say_heeded()
    return 0


def _say_heeded() -> None:
    """Variables that are not ours and still decide how origins are reached."""
    from forebay_proxy.origins.outward import heeded  # noqa: PLC0415  (loads the HTTP client: nothing else this verb does needs it)

    if found := heeded(os.environ):
        say("")
        for line in plain_table([("variable of others", "value"), *found]):
            say(line)


def _plain(value: Any) -> Any:
    """As JSON can say it: sizes as bytes or a percentage, secrets masked."""
    match value:
        case SecretStr():
            return "(set)"
        case TotalBytes(count):
            return count
        case ShareOfDisk(ratio):
            return f"{ratio * 100:g}%"
        case Path():
            return str(value)
        case tuple():
            return [_plain(item) for item in value]
    return value


def _shown(settings: Settings, name: str) -> str:
    value = getattr(settings, name)
    if value is None or value == ():
        return f"({default_text(name)})"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, SecretStr):
        return "(set)"
    return "(off)" if value == "" else value_text(value)
