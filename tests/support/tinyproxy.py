"""tinyproxy as a real upstream proxy: forwards http, tunnels https, asks for a password if it is given one; and what it was asked.

with lonely_network("10.7.7.7"), tinyproxy(directory, user="me:secret") as proxy:
    {"HTTPS_PROXY": proxy.url} ... proxy.asked()
"""

from __future__ import annotations

import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.ports import free_ports, listens
from support.sidecar import wait_until

__all__ = ["TinyProxy", "tinyproxy"]

_ASKED = re.compile(r"Request \(file descriptor \d+\): (\S+ \S+)")


@dataclass(frozen=True)
class TinyProxy:
    """``url`` carries no password."""

    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(self) -> list[str]:
        """Method and target of each request, in order."""
        return _ASKED.findall(self.log.read_text())


@contextmanager
def tinyproxy(directory: Path, *, user: str = "", tunnels_to: int | None = None, upstream: int | None = None) -> Iterator[TinyProxy]:
    """Listens on 127.0.0.1.

    ``user``: the name:password it wants. ``tunnels_to``: the only port CONNECT may name. ``upstream``: the port on 127.0.0.1 of the proxy
    that it goes through itself.
    """
    command = shutil.which("tinyproxy")
    if command is None:
        pytest.skip("needs tinyproxy: scripts/test installs it when run as root on Debian")
    (port,) = free_ports(1)
    log, config = directory / "tinyproxy.log", directory / "tinyproxy.conf"
    log.touch()
    user_here = pwd.getpwuid(log.stat().st_uid).pw_name
    lines = [f"User {user_here}", f"Port {port}", "Listen 127.0.0.1", "Timeout 30", f'LogFile "{log}"', "LogLevel Info"]
    lines += ["BasicAuth " + user.replace(":", " ")] if user else []
    lines += [f"ConnectPort {tunnels_to}"] if tunnels_to else []
    lines += [f"Upstream http 127.0.0.1:{upstream}"] if upstream else []
    config.write_text("\n".join([*lines, ""]))
    process = subprocess.Popen([command, "-d", "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or listens(port))
        assert process.poll() is None, log.read_text()
        yield TinyProxy(port, log)
    finally:
        process.kill()  # it does not always hear a signal to end
        process.wait()
