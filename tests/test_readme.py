"""The README promises what the code does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click

from forebay_proxy.cli import cli
from forebay_proxy.metric_table import table as metric_table
from forebay_proxy.settings_table import table as settings_table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_configuration_table_is_current() -> None:
    """Rebuild it with ``python -m forebay_proxy.settings_table`` when this fails."""
    assert settings_table() in README


def test_the_metrics_table_is_current() -> None:
    """Rebuild it with ``python -m forebay_proxy.metrics --table`` when this fails."""
    assert metric_table() in README


def test_the_first_screen_is_one_screen() -> None:
    """What a visitor sees without scrolling ends before the first heading of the second part."""
    first = README.split("\n## ", 1)[0].splitlines()
    assert len(first) <= 50


def test_every_link_leads_somewhere() -> None:
    """No page that is pointed to is missing."""
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_script_named_exists() -> None:
    """What people are told to run is there, and may be run."""
    named = set(re.findall(r"scripts/\w+", README))
    assert {"scripts/demo", "scripts/test"} <= named
    assert [name for name in named if not (ROOT / name).stat().st_mode & 0o100] == []


def test_every_verb_named_exists() -> None:
    """``forebay VERB`` in a code block is a verb of the command line."""
    verbs = {word for line in _shell_lines() for word in _verbs_in(line)}
    assert {"run", "serve", "warm", "status"} <= verbs
    assert verbs <= set(cli.commands)


def test_every_flag_named_exists() -> None:
    """Flags in prose and examples are settings or options of a verb."""
    known = {flag for command in cli.commands.values() for flag in _flags_of(command)}
    prose = README.split("## Metrics", 1)[0]
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", prose)) - {"--nproc-per-node"}
    assert named - known == set()


def _flags_of(command: click.Command) -> set[str]:
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    own = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*(_flags_of(child) for child in inner))


def _shell_lines() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    return [line.partition("   #")[0] for block in blocks for line in block.splitlines()]


def _verbs_in(line: str) -> list[str]:
    found = []
    for command in line.split(";"):
        words = shlex.split(command)
        if len(words) > 1 and words[0] == "forebay":
            found.append(words[1])
    return found
