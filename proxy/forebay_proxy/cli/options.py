"""Command line options made from the settings' fields, so that flags, variables and help cannot drift apart."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

import click

from forebay_proxy.config.settings import Settings, default_text, env_name, field_note, flag_name, has_flag, load
from forebay_proxy.config.settings_file import find_file
from forebay_proxy.core import secret_parameters
from forebay_proxy.core.quantities import parse_size
from forebay_proxy.core.shard import Shard

if TYPE_CHECKING:
    from forebay_proxy.app.status import ServiceInfo
    from forebay_proxy.origins.survey import Survey


__all__ = [
    "SURVEY_SETTINGS",
    "Seams",
    "SettingsApart",
    "as_arguments",
    "config_option",
    "from_option",
    "json_option",
    "load_settings",
    "quantity",
    "settings_options",
    "survey_options",
    "url_option",
]


# Imported inside: the service brings aiohttp and boto3, half a second that no other verb should wait for.


def _serve(settings: Settings, announce: Callable[[ServiceInfo], None]) -> int:
    from forebay_proxy.app.service import run_service  # noqa: PLC0415

    return run_service(settings, announce=announce)


def _survey(shards: Sequence[Shard], settings: Settings, count: int) -> Survey:
    from forebay_proxy.origins.survey import survey  # noqa: PLC0415

    return survey(shards, settings, count)


@dataclass(frozen=True)
class Seams:
    """``program`` is what ``run`` starts as a sidecar; -P keeps a ``queue.py`` in the training directory from shadowing the library's."""

    program: tuple[str, ...] = (sys.executable, "-P", "-m", "forebay_proxy", "serve")
    serve: Callable[[Settings, Callable[[ServiceInfo], None]], int] = _serve
    survey: Callable[[Sequence[Shard], Settings, int], Survey] = _survey


_SURVEY_SAMPLE = 32  # survey.SAMPLE, whose module costs the command line half a second
SURVEY_SETTINGS = ("allow_origin", "file_root")  # those that decide whether an origin may be asked at all: its refusals name them

Function = TypeVar("Function", bound=Callable[..., Any])

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Settings file.  [FOREBAY_CONFIG; default: $XDG_CONFIG_HOME/forebay/forebay.toml]",
)
url_option = click.option(
    "--url", metavar="URL", help="The sidecar to talk to: http://host:port or unix:/path.  [FOREBAY_URL; default: the one of this node]"
)
from_option = click.option("--from", "lists", multiple=True, metavar="FILE", help="Also the URLs in FILE, one a line; '-' is stdin.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


class SettingsApart(click.Command):
    """A verb whose own options come first in its help, and the sidecar's settings under a heading of their own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own, settings = list[tuple[str, str]](), list[tuple[str, str]]()
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                (settings if parameter.name in Settings.model_fields else own).append(record)
        for heading, records in (("Options", own), ("Settings of a sidecar that is started", settings)):
            with formatter.section(heading):
                formatter.write_dl(records)


def settings_options(function: Function) -> Function:
    """One option a field that may be given on a command line; values reach the verb as they were written."""
    for name in reversed([name for name in Settings.model_fields if has_flag(name)]):
        function = _one_setting(name)(function)
    return function


def _one_setting(name: str) -> Callable[[Function], Function]:
    text = f"{Settings.model_fields[name].description}  [{env_name(name)}; default: {default_text(name)}]"
    if Settings.model_fields[name].annotation is bool:
        return click.option(f"{flag_name(name)}/--no-{name.replace('_', '-')}", name, default=None, help=text)
    repeatable = get_origin(Settings.model_fields[name].annotation) is tuple
    return click.option(flag_name(name), name, metavar=field_note(name, "metavar"), multiple=repeatable, help=text)


def quantity(parse: Callable[[str], Any]) -> Any:
    """A click callback: ``parse`` with its own words for what is wrong."""

    def callback(context: click.Context, option: click.Parameter, text: str | None) -> Any:
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def _total_bytes(text: str) -> int:
    if text.strip().endswith("%"):
        raise ValueError(f"{text!r}: this plan may be for another machine, whose disk it does not know; write how many bytes, as 500GB")
    return parse_size(text)


def survey_options(function: Function) -> Function:
    """What a verb must know of a set that no sidecar has read yet."""
    size = quantity(_total_bytes)
    for option in reversed((
        from_option,
        click.option("--cache-size", callback=size, metavar="SIZE", help="What the cache may hold, as 500GB.  [FOREBAY_CACHE_SIZE]"),
        click.option("--shard-size", callback=size, metavar="SIZE", help="Length of every shard, instead of asking the origin."),
        click.option(
            "--ask", type=click.IntRange(min=1), metavar="N", default=_SURVEY_SAMPLE, show_default=True,
            help="Of how many shards, evenly spread, the origin is asked.",
        ),
        *map(_one_setting, SURVEY_SETTINGS),
    )):  # fmt: skip
        function = option(function)
    return function


def load_settings(flags: Mapping[str, Any], config: Path | None) -> Settings:
    """The settings of this very process: its flags, its environment, the file they lead to. Raises ``ConfigError``."""
    settings = load(flags, os.environ, find_file(config, os.environ))
    secret_parameters.also_secret(settings.secret_param)
    return settings


def as_arguments(flags: Mapping[str, Any], config: Path | None) -> list[str]:
    """The given flags as a command line for another ``forebay serve`` (settings in the environment are inherited anyway)."""
    arguments = ["--config", str(config)] if config else []
    for name, value in flags.items():
        if isinstance(value, bool):
            arguments.append(flag_name(name) if value else f"--no-{name.replace('_', '-')}")
        elif value is not None:
            for item in value if isinstance(value, tuple) else (value,):
                arguments += [flag_name(name), str(item)]
    return arguments
