"""Real S3 servers for tests: moto (fast, does not check signatures) and a Ceph RADOS gateway (slow to install, checks everything).

Use the fixtures by importing them into a test module or its conftest: ``from support.s3_servers import moto, rados_gateway  # noqa: F401``.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.loaders import Loader
from support.ports import free_ports

__all__ = ["S3Server", "gateway", "moto", "rados_gateway"]


# botocore's descriptions of services, read once in a process: reading them is most of making a client, and tests make hundreds.
_READ: dict[Any, Any] = {}
_began = Loader.__init__


def _begin_sharing(loader: Loader, *given: Any, **how: Any) -> None:
    _began(loader, *given, **how)
    loader._cache = _READ


Loader.__init__ = _begin_sharing


_PROGRAMS = ("radosgw", "radosgw-admin", "ceph-mon", "ceph-osd", "ceph", "ceph-authtool", "monmaptool")
_MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class S3Server:
    """A running S3 server; the user ``access_key`` owns everything in it. ``home``: of a gateway, where its programs have their files."""

    url: str
    access_key: str
    secret_key: str
    home: Path | None = None

    @property
    def environ(self) -> dict[str, str]:
        """What points the AWS SDK at it."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def admin(self, *words: str) -> None:
        """``radosgw-admin WORDS``."""
        subprocess.run(["radosgw-admin", *words], env=self._ceph(), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @contextmanager
    def signalled(self, number: signal.Signals) -> Iterator[None]:
        """The gateway alone is stopped (SIGSTOP) or killed; afterwards it serves again."""
        assert self.home is not None
        (pid,) = (int(file.read_text()) for file in (self.home / "run").glob("client*.pid"))
        os.kill(pid, number)
        try:
            yield
        finally:
            if number == signal.SIGSTOP:
                os.kill(pid, signal.SIGCONT)
            else:
                subprocess.run(["radosgw", "-n", "client.admin"], env=self._ceph(), check=True, stdout=subprocess.DEVNULL)
                _until_listening(self.url)

    def _ceph(self) -> dict[str, str]:
        return {**os.environ, "CEPH_CONF": f"{self.home}/ceph.conf"}

    @contextmanager
    def client(self) -> Iterator[Any]:
        """A boto3 client of its owner."""
        client = boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required"),
        )
        with closing(client):
            yield client


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    """A moto server in a process of its own."""
    environ = {**os.environ, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    with subprocess.Popen(
        [sys.executable, "-c", _MOTO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            pytest.skip("moto does not start; install moto[server,s3]")
        yield S3Server(f"http://127.0.0.1:{int(line)}", "moto-key", "moto-secret")
        process.kill()


@pytest.fixture(scope="session")
def rados_gateway() -> Iterator[S3Server]:
    """A Ceph RADOS gateway; skips, saying why, where the programs are not installed."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: apt-get install --no-install-recommends radosgw ceph-mon ceph-osd")
    with gateway() as server:
        yield server


@contextmanager
def gateway(address: str = "127.0.0.1") -> Iterator[S3Server]:
    """One for the length of the ``with``, whose S3 port is at ``address``."""
    # Not under pytest's tmp_path: a unix socket path may have no more than 107 characters.
    with tempfile.TemporaryDirectory(prefix="rgw-", ignore_cleanup_errors=True) as directory:
        try:
            yield _start_gateway(Path(directory), address)
        finally:
            _kill_all(Path(directory) / "run")
            for again in Path(directory).glob("*/run"):  # those of a gateway that a test killed
                _kill_all(again)


def _start_gateway(directory: Path, address: str) -> S3Server:
    for attempt in range(3):  # the ports are free when picked, not reserved
        port, monitor_port = free_ports(2)
        home = directory / str(attempt)
        server = S3Server(f"http://{address}:{port}", "gateway-key", "gateway-secret", home)
        script = Path(__file__).with_name("rgw.sh")
        command = ["bash", str(script), str(home), str(port), str(monitor_port), server.access_key, server.secret_key, address]
        with (directory / f"{attempt}.log").open("wb") as log:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=240, check=False)
        (directory / "run").mkdir(exist_ok=True)
        for pid_file in (home / "run").glob("*.pid"):
            shutil.copy(pid_file, directory / "run" / f"{attempt}-{pid_file.name}")
        if done.returncode == 0:
            return server
        print((directory / f"{attempt}.log").read_text(errors="replace")[-2000:])
        _kill_all(directory / "run")
    pytest.skip("the RADOS gateway did not start; its output is above")


def _until_listening(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    for _ in range(600):
        with suppress(OSError), socket.create_connection((host, int(port))):
            return
        time.sleep(0.05)
    raise AssertionError("the gateway does not listen again")


def _kill_all(run: Path) -> None:
    """The OSD takes its time on TERM, and there is nothing to save."""
    for pid_file in run.glob("*.pid"):
        with suppress(ProcessLookupError, ValueError):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
        pid_file.unlink()
