"""Joining or starting a sidecar: the ways it can fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.cli import FAKE_PROGRAM, environment
from support.fake_sidecar import FakeSidecar

from forebay_proxy.cli.client import SidecarUnreachable
from forebay_proxy.cli.run import join as module
from forebay_proxy.cli.run.join import Joined, join
from forebay_proxy.node.runfile import RunDirectory

pytestmark = pytest.mark.another_python


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "run").mkdir(mode=0o700)
    return environment(tmp_path / "run")


def end(joined: Joined) -> None:
    assert joined.process is not None
    joined.process.terminate()
    joined.process.wait()


def test_one_that_never_gets_ready_is_killed(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """After the deadline it is gone, and the line says so."""
    monkeypatch.setattr(module, "_START_S", 0.3)
    with pytest.raises(SidecarUnreachable, match="not ready within"):
        join(environ, (*FAKE_PROGRAM, "--hang"))
    assert RunDirectory.of(environ).live() == []


def test_one_that_ends_without_a_word(environ: dict[str, str]) -> None:
    """The exit code is all there is to say, and where the log is."""
    with pytest.raises(SidecarUnreachable, match=r"exit code 3 .*forebay\.log"):
        join(environ, ("sh", "-c", "exit 3"))


def test_one_found_that_drains_is_not_joined(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A sidecar on its way out is as good as none: another starts beside it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", environ["XDG_RUNTIME_DIR"])
    with FakeSidecar() as fake, fake.announce(RunDirectory.of(os.environ)):
        fake.ready = False
        with join(environ, FAKE_PROGRAM) as joined:
            assert joined.how == "started"
            end(joined)


def test_one_that_takes_no_more_holds_is_joined(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The holds it has keep it; a second sidecar beside it would share nothing with it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", environ["XDG_RUNTIME_DIR"])
    with FakeSidecar() as fake, fake.announce(RunDirectory.of(os.environ)):
        fake.full = True
        with join(environ, FAKE_PROGRAM) as joined:
            assert (joined.how, joined.url) == ("joined", fake.url)


def test_a_unix_address_is_known_by_its_url_too(tmp_path: Path, environ: dict[str, str]) -> None:
    """Rewrite rules need http://; the sidecar's status has it."""
    with FakeSidecar(on_unix=tmp_path / "s"), join(environ, FAKE_PROGRAM, url=f"unix:{tmp_path / 's'}") as joined:
        pass
    assert (joined.how, joined.url) == ("named", "http://127.0.0.1:7070")
