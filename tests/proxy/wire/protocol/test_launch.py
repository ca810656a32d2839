"""Joining or starting from a training process: real processes, the sidecar is the fake one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.cli import environment, program
from support.fake_sidecar import FakeSidecar
from support.verbs import begin

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.node.runfile import RunDirectory
from forebay_proxy.wire.protocol import launch
from forebay_proxy.wire.protocol.launch import LaunchedSidecar, LaunchError, forebay_program, join_or_start

IDLE = ("--idle-exit-s", "30")


class Node:
    """A run directory of the test's own."""

    def __init__(self, path: Path) -> None:
        path.mkdir(mode=0o700)
        self.environ = {name: value for name, value in environment(path).items() if name != "FOREBAY_URL"}
        self.directory = RunDirectory(path)

    def join(self, *fake: str, **variables: str) -> LaunchedSidecar:
        return join_or_start((), {**self.environ, **variables}, program=program(*IDLE, *fake))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """``forebay launch`` is forked there: security/test_settings_file.py starts it."""
    monkeypatch.setattr(subprocess, "Popen", begin)
    node = Node(tmp_path / "run")
    yield node
    for record in node.directory.live():
        os.kill(record.pid, signal.SIGTERM)


def test_one_is_started_and_the_next_joins_it(node: Node) -> None:
    """Both hold it; where it logs is known to whoever started it."""
    with node.join() as first, node.join() as second:
        assert (first.how, second.how) == ("started", "joined")
        assert first.endpoint == second.endpoint == node.directory.live()[0].url
        assert first.log == str(node.directory.path / "forebay.log")
        assert first.hold is not None
        assert first.hold.alive()


@contextmanager
def at_the_gate(node: Node, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A starter whose sidecar stands before a gate, which opens at the end of the block."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = [*program(*IDLE, "--gate", str(gate)), "launch"]
    with subprocess.Popen(command, env=node.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        writer = os.open(gate, os.O_WRONLY)  # returns once the sidecar stands before it
        yield starter
    os.close(writer)


def test_a_starter_that_is_killed_leaves_its_sidecar_to_the_next(node: Node, tmp_path: Path) -> None:
    """The lock is the sidecar's too until it is ready: nobody starts a second one on the same directory."""
    with at_the_gate(node, tmp_path) as starter:
        starter.kill()
        starter.communicate()
        with pytest.raises(ConfigError, match="has not ended"), node.directory.starting(within_s=0.1):
            pass
    with node.join() as held:
        assert held.how == "joined"
    assert len(node.directory.live()) == 1


def test_a_starter_that_is_killed_with_its_sidecar_lets_the_next_go_on(node: Node, tmp_path: Path) -> None:
    """The kernel gives the lock back."""
    with at_the_gate(node, tmp_path) as starter:
        (child,) = Path(f"/proc/{starter.pid}/task/{starter.pid}/children").read_text().split()
        starter.kill()
        os.kill(int(child), signal.SIGKILL)
        starter.communicate()
    with node.join() as held:
        assert held.how == "started"


def test_a_named_one_is_used_and_nothing_started(node: Node) -> None:
    """FOREBAY_URL wins over everything; it is held all the same."""
    with FakeSidecar() as fake, node.join(FOREBAY_URL=fake.url + "/") as held:
        assert (held.how, held.endpoint) == ("named", fake.url)
        fake.wait_for_connections(1)
    assert node.directory.live() == []


def test_a_named_one_that_is_not_there_is_an_error(node: Node) -> None:
    """Whoever named it wants that one."""
    with pytest.raises(LaunchError, match="FOREBAY_URL: no sidecar answers"):
        node.join(FOREBAY_URL="http://127.0.0.1:1")


def test_one_that_will_not_start_says_why(node: Node) -> None:
    """Its last lines, and its exit code."""
    with pytest.raises(LaunchError, match=r"directory /x is on NFS; it ended with exit code 2 .*forebay\.log"):
        node.join("--fail", "directory /x is on NFS")
    assert node.directory.live() == []


def test_a_wrong_option_is_named(node: Node) -> None:
    """As the command line would say it, and it leads to the help of the verb whose options they are."""
    with pytest.raises(LaunchError, match=r"No such option '--cachesize'.*see 'forebay serve --help'"):
        join_or_start(("--cachesize", "3"), node.environ, program=program())


def test_one_that_says_nothing_in_time_is_given_up(node: Node) -> None:
    """Training is not kept waiting for ever."""
    with pytest.raises(LaunchError, match="not ready in time"):
        join_or_start((), node.environ, program=(sys.executable, "-c", "import sys; sys.stdin.read()"), timeout_s=0.3)


def test_the_command_of_the_environment_it_was_installed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`forebay run` lends its packages to other interpreters; the sidecar runs on its own."""
    command = tmp_path / "bin" / "forebay"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    monkeypatch.setattr(
        launch, "__file__", str(tmp_path / "lib" / "python3.12" / "site-packages" / "forebay_proxy" / "wire" / "protocol" / "launch.py")
    )
    assert forebay_program({}) == [str(command)]
    assert launch._surroundings([str(command)], {"PYTHONPATH": "/train", "HOME": "/h"}) == {"HOME": "/h"}


def test_the_one_on_path_where_this_interpreter_lacks_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And if there is none, the error says what to install."""
    monkeypatch.setattr(launch, "_NEEDS", ("no_such_module_of_ours",))
    with pytest.raises(LaunchError, match="pip install forebay"):
        forebay_program({"PATH": str(tmp_path)})
    (tmp_path / "forebay").write_text("#!/bin/sh\n")
    (tmp_path / "forebay").chmod(0o755)
    assert forebay_program({"PATH": str(tmp_path)}) == [str(tmp_path / "forebay")]
