"""Which sidecar a verb talks to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.fake_sidecar import FakeSidecar

from forebay_proxy.cli.client import SidecarRefused, SidecarUnreachable
from forebay_proxy.cli.locate import locate
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.node.runfile import RunDirectory


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.chdir(tmp_path)
    return RunDirectory.of(os.environ)


def test_a_named_one_before_all(directory: RunDirectory) -> None:
    """--url before FOREBAY_URL before the run file."""
    with FakeSidecar() as first, FakeSidecar() as second, FakeSidecar() as third, third.announce(directory):
        environ = {**os.environ, "FOREBAY_URL": second.url}
        assert locate(first.url, environ).address == first.url
        assert locate(None, environ).address == second.url
        assert locate(None, os.environ).address == third.url


def test_a_socket_that_was_named(directory: RunDirectory, tmp_path: Path) -> None:
    """FOREBAY_SOCKET is an address too, while something listens there."""
    with FakeSidecar(on_unix=tmp_path / "s") as fake:
        assert locate(None, {**os.environ, "FOREBAY_SOCKET": str(tmp_path / "s")}).status() == fake.status
    with pytest.raises(ConfigError, match="no sidecar runs"):
        locate(None, {**os.environ, "FOREBAY_SOCKET": str(tmp_path / "absent")})


def test_the_one_with_our_credentials_first(directory: RunDirectory) -> None:
    """Of several on a node the one that reads as we would."""
    environ = {**os.environ, "AWS_PROFILE": "mine"}
    with (
        FakeSidecar() as main,
        FakeSidecar() as ours,
        main.announce(directory),
        ours.announce(directory, fingerprint=directory.fingerprint(environ)),
    ):
        assert locate(None, environ).address == ours.url
        assert locate(None, os.environ).address == main.url
        assert locate(None, {**os.environ, "AWS_PROFILE": "other"}).address == main.url


def test_a_dead_named_one_is_an_error_and_no_guess(directory: RunDirectory) -> None:
    """Whoever names an address means it."""
    with FakeSidecar() as fake, fake.announce(directory):
        with pytest.raises(SidecarUnreachable):
            locate("http://127.0.0.1:1", os.environ)
        with pytest.raises(SidecarUnreachable) as caught:
            locate(None, {**os.environ, "FOREBAY_URL": "http://127.0.0.1:1"})
    assert caught.value.next_step == "FOREBAY_URL names it: unset that, or start one there with 'forebay serve'"


def test_the_token_comes_from_the_variable_or_the_file(directory: RunDirectory, tmp_path: Path) -> None:
    """Both places where a token may be."""
    with FakeSidecar(token="t") as fake:
        with pytest.raises(SidecarRefused):
            locate(fake.url, os.environ)
        locate(fake.url, {**os.environ, "FOREBAY_TOKEN": "t"})
        path = tmp_path / "named.toml"
        path.write_text('token = "t"\n')
        path.chmod(0o600)
        locate(fake.url, {**os.environ, "FOREBAY_CONFIG": str(path)})
