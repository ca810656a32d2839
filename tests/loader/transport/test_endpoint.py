"""Where the sidecar is found."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from forebay_loader.transport.endpoint import Endpoint, find_endpoint, parse_endpoint, unnamed
from forebay_proxy.wire.protocol.runfile import process_start_time, read_run_file


def write_run_file(directory: Path, mode: int = 0o600, **changes: object) -> Path:
    """A run file of this very process, with changes."""
    pid = os.getpid()
    described = {"url": "http://127.0.0.1:7071", "pid": pid, "start_time": process_start_time(pid), **changes}
    path = directory / "forebay.json"
    path.write_text(json.dumps(described))
    path.chmod(mode)
    return path


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    return tmp_path / "runtime"


def environ(runtime: Path, **more: str) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(runtime), **more}


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://127.0.0.1:7070", Endpoint("127.0.0.1", 7070)),
        ("http://127.0.0.1:7070/", Endpoint("127.0.0.1", 7070)),
        ("http://[::1]:7070", Endpoint("::1", 7070)),
        ("http://node", Endpoint("node", 80)),
        ("unix:/run/forebay.sock", Endpoint(socket_path="/run/forebay.sock")),
        ("unix:", None),
        ("http://127.0.0.1:port", None),
        ("http://[::1:7070", None),
        ("https://127.0.0.1:7070", None),
        ("7070", None),
    ],
)
def test_parse(url: str, found: Endpoint | None) -> None:
    """An address is understood, or names no sidecar; it never raises."""
    assert parse_endpoint(url) == found


def test_base() -> None:
    """What proxy URLs begin with; a socket is in no URL, a token in no text."""
    assert Endpoint("::1", 7070).base == "http://[::1]:7070"
    assert Endpoint(socket_path="/s").base == ""
    assert "secret" not in repr(Endpoint(token="secret"))


def test_order(runtime: Path) -> None:
    """FOREBAY_URL, then FOREBAY_SOCKET, then the run file."""
    write_run_file(runtime)
    both = environ(runtime, FOREBAY_URL="http://127.0.0.1:1", FOREBAY_SOCKET="/s")
    assert find_endpoint(both) == Endpoint("127.0.0.1", 1)
    assert find_endpoint(environ(runtime, FOREBAY_SOCKET="/s")) == Endpoint(socket_path="/s")
    assert find_endpoint(environ(runtime, FOREBAY_TOKEN="t")) == Endpoint("127.0.0.1", 7071, token="t")


def test_run_file_others_could_write(runtime: Path) -> None:
    """A run file that is not private, or is a link, is ignored."""
    path = write_run_file(runtime, mode=0o644)
    assert read_run_file(environ(runtime)) is None
    path.chmod(0o600)
    assert read_run_file(environ(runtime)) is not None
    path.rename(runtime / "other")
    path.symlink_to(runtime / "other")
    assert read_run_file(environ(runtime)) is None


def test_runtime_directory_others_could_write(runtime: Path) -> None:
    """A run directory that is open to others is not believed."""
    write_run_file(runtime)
    runtime.chmod(0o777)
    assert read_run_file(environ(runtime)) is None or read_run_file(environ(runtime)) == read_run_file({})


def test_why_there_is_none() -> None:
    """A variable that is wrong is told as that, without its text; without one, what to start."""
    assert "start one with `forebay serve`" in unnamed({})
    said = unnamed({"FOREBAY_URL": "https://user:secret@host"})
    assert "FOREBAY_URL is set, and names no sidecar" in said
    assert "secret" not in said
