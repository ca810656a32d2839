"""forebay serve: what it says once it listens, and the settings it hands over."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.cli import invoke

from forebay_proxy.app.status import ServiceInfo
from forebay_proxy.cli.options import Seams
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.quantities import TotalBytes
from forebay_proxy.node.runfile import RunDirectory, RunFile, process_start_time

pytestmark = pytest.mark.each_python


INFO = ServiceInfo(
    url="http://127.0.0.1:7071", port=7071, socket=Path("/run/user/1/forebay.sock"), cache_dir=Path("/nvme/forebay"),
    instance="00112233aabbccdd", capacity_bytes=200 * 10**9, fingerprint="0" * 16, notices=("cache size 20 GiB; --cache-size changes it",),
)  # fmt: skip


@dataclass
class Service:
    seen: list[Settings] = field(default_factory=list)

    def __call__(self, settings: Settings, announce: Callable[[ServiceInfo], None]) -> int:
        self.seen.append(settings)
        announce(INFO)
        return 0


def test_it_says_where_and_how_much() -> None:
    """Address, socket, directory and capacity on stdout; notices on stderr."""
    result = invoke("serve", seams=Seams(serve=Service()))
    assert result.exit_code == 0
    for part in ("http://127.0.0.1:7071", "/run/user/1/forebay.sock", "/nvme/forebay", "200 GB"):
        assert part in result.stdout
    assert result.stderr == "forebay: cache size 20 GiB; --cache-size changes it\n"


def test_beside_another_it_says_how_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The next commands name its address where, without one, they would find the sidecar that runs already."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("FOREBAY_URL", raising=False)
    alone = invoke("serve", seams=Seams(serve=Service())).stdout
    directory = RunDirectory.of(os.environ)
    own, pid = directory.fingerprint(os.environ), os.getpid()
    with directory.claim(own) as claim:
        claim.announce(RunFile("http://127.0.0.1:7070", None, pid, process_start_time(pid) or 0, "x", "/cache", own, "run"))
        beside = invoke("serve", seams=Seams(serve=Service())).stdout
    assert 'forebay run -- <your command>, or: eval "$(forebay env)"' in alone
    assert 'forebay run --url http://127.0.0.1:7071 -- <your command>, or: eval "$(forebay env --url http://127.0.0.1:7071)"' in beside
    assert "http://127.0.0.1:7070" in beside


def test_json_is_one_ready_line() -> None:
    """A program reads one line and knows where the sidecar is."""
    result = invoke("serve", "--json", seams=Seams(serve=Service()))
    assert json.loads(result.stdout) == {
        "event": "ready", "url": "http://127.0.0.1:7071", "socket": "/run/user/1/forebay.sock", "pid": os.getpid(),
        "instance": "00112233aabbccdd", "cache_dir": "/nvme/forebay", "capacity_bytes": 200 * 10**9,
    }  # fmt: skip
    assert result.stdout.count("\n") == 1


def test_flags_reach_the_service() -> None:
    """Switches, repeated flags and quantities arrive as settings."""
    service = Service()
    flags = ["--no-prefetch", "--allow-origin", "s3://a", "--allow-origin", "s3://b", "--cache-size", "1GB", "--socket", "off"]
    invoke("serve", *flags, seams=Seams(serve=service))
    (settings,) = service.seen
    assert (settings.prefetch, settings.allow_origin, settings.socket) == (False, ("s3://a", "s3://b"), "")
    assert settings.cache_size == TotalBytes(10**9)
