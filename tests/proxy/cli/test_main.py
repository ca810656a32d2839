"""The command as a whole: help that works, errors that are one line, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.cli import invoke

from forebay_proxy.cli.options import Seams
from forebay_proxy.core.errors import ConfigError

pytestmark = pytest.mark.another_python

VERBS = [
    "try", "serve", "run", "env", "check", "warm", "index", "status", "ps", "stop", "ls", "evict", "verify", "plan", "doctor",
    "takeover", "dashboard", "config",
]  # fmt: skip


@pytest.mark.parametrize("verb", [*(verb for verb in VERBS if verb not in ("config", "dashboard")), "config show", "dashboard export"])
def test_each_verb_explains_itself_with_examples(verb: str) -> None:
    """--help of every verb shows lines to copy."""
    result = invoke(*verb.split(), "--help")
    assert result.exit_code == 0
    assert "Examples:\n" in result.output
    assert f"forebay {verb}" in result.output


def test_settings_stand_apart_in_run() -> None:
    """Its own few options first; every setting once, under a heading that says whose they are."""
    own, _, settings = invoke("run", "--help").output.partition("Settings of a sidecar that is started:\n")
    assert "--required" in own
    assert "--cache-size" not in own.partition("Options:\n")[2]
    assert settings.count("--cache-size ") == 1
    assert "--help" not in settings


def test_prefetch_is_warm() -> None:
    """The word users of other caches try first works too."""
    assert "Fetch shards" in invoke("prefetch", "--help").output


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["serv"], "No such command 'serv'; did you mean 'serve'?"), (["xyz"], "No such command 'xyz'"),
        (["doctor", "s3://b/a.tar", "--ranks", "2"], "belong together"),
        (["serve", "--prot", "1"], "--port"), (["run"], "Missing argument"),
        (["serve", "--cache-size", "5XB"], "200GB"), (["status", "--url", "nonsense"], "http://127.0.0.1:7070"),
        (["serve", "--config", "/no/such.toml"], "/no/such.toml does not exist"),
        (["evict"], "name shards or say --all"), (["warm"], "name at least one URL"), (["status", "--sh"], "--sh"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_and_exit_code_2(arguments: list[str], part: str) -> None:
    """No usage screen, no traceback: the cause, then the next step."""
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert part in result.stderr
    assert result.stderr.startswith("forebay: ")
    assert result.stderr.count("\n") == 1


def test_an_error_of_the_service_is_one_line() -> None:
    """What the sidecar refuses at start is printed with its next step."""

    def refuse(*_: object) -> int:
        raise ConfigError("cache directory /x cannot be written", next_step="choose another with --cache-dir")

    result = invoke("serve", seams=Seams(serve=refuse))
    assert (result.exit_code, result.stderr) == (2, "forebay: cache directory /x cannot be written; choose another with --cache-dir\n")


def test_ctrl_c_is_130_and_silent() -> None:
    """An interrupted verb ends as shells expect, without a word of Python."""

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    result = invoke("serve", seams=Seams(serve=interrupted))
    assert result.exit_code == 130
    assert result.stderr.strip() == ""


@pytest.mark.each_python
def test_it_runs_as_a_module() -> None:
    """python -m forebay_proxy is the command, and needs neither torch nor aiohttp to answer."""
    code = "import sys; from forebay_proxy.cli import main; assert not {'torch', 'aiohttp', 'boto3', 'webdataset'} & set(sys.modules)"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environ)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "forebay_proxy", "--version"], capture_output=True, text=True, env=environ, check=True
    )
    assert done.stdout.startswith("forebay")


def test_ctrl_c_while_the_verbs_load_shows_no_frames() -> None:
    """Half a second of imports, in which a person may think better of it: 130, and not a word."""
    raising = (
        "import builtins, sys; real = builtins.__import__\n"
        "def load(name, *rest, **more):\n"
        "    if name == 'forebay_proxy.cli.main': raise KeyboardInterrupt\n"
        "    return real(name, *rest, **more)\n"
        "from forebay_proxy.__main__ import main\n"
        "builtins.__import__ = load\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", raising], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
