"""The command line in tests: in this process with a runner, or as a program that starts a fake sidecar."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from click.testing import CliRunner, Result
from support.verbs import with_sidecar

from forebay_proxy.cli.main import cli
from forebay_proxy.cli.options import Seams

FAKE_PROGRAM = (sys.executable, str(Path(__file__).with_name("fake_sidecar.py")))


def invoke(*arguments: str, seams: Seams | None = None, stdin: str | None = None) -> Result:
    """``forebay ARGUMENTS`` in this process; stdout and stderr apart."""
    result = CliRunner().invoke(cli, list(arguments), obj=seams, input=stdin, catch_exceptions=False, prog_name="forebay")
    assert isinstance(result, Result)
    return result


def verbs() -> dict[str, click.Command]:
    """All of them, by name."""
    context = click.Context(cli)
    return {name: command for name in cli.list_commands(context) if (command := cli.get_command(context, name))}


def program(*fake_flags: str) -> list[str]:
    """Argv of a ``forebay`` whose ``run`` starts the fake sidecar with ``fake_flags``."""
    return with_sidecar((*FAKE_PROGRAM, *fake_flags))


def environment(run_directory: Path, **variables: str) -> dict[str, str]:
    """This environment with our sources importable and a run directory of the test's own."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "XDG_RUNTIME_DIR": str(run_directory),
        **variables,
    }
