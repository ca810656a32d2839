"""nginx as a real http origin for tests: the same files plainly, without Range, without length, throttled; and what it was asked.

with nginx(directory / "nginx", files) as origin:
    origin.url("plain", "a.tar") ... origin.log("plain")
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from support.ports import free_ports, listens
from support.sidecar import wait_until

__all__ = ["Nginx", "Served", "nginx"]

PLAIN = ""
NO_RANGE = "max_ranges 0;"
# A substitution that never happens: nginx cannot know that, drops Content-Length, ETag and Range, and sends chunks.
NO_LENGTH = "sub_filter_types *; sub_filter 'no shard holds these words' ''; sub_filter_last_modified on;"

_CONFIG = """
worker_processes 1; pid {work}/pid; error_log {work}/error.log error; daemon off; user {user};
events {{ worker_connections 1024; }}
http {{
  sendfile on; tcp_nopush on; types {{ }} default_type application/x-tar; keepalive_requests 100000;
  log_format counted '$uri|$request_method|$status|$http_range|$body_bytes_sent';
  client_body_temp_path {work}/t1; proxy_temp_path {work}/t2; fastcgi_temp_path {work}/t3;
  uwsgi_temp_path {work}/t4; scgi_temp_path {work}/t5;
  {servers}
}}
"""
_SERVER = "server {{ listen 127.0.0.1:{port}; root {files}; access_log {work}/{name}.log counted; {options} }}"


class Served(NamedTuple):
    """One line of the access log. ``span`` is the Range as asked, "-" without one; ``sent`` are body bytes."""

    path: str
    method: str
    status: int
    span: str
    sent: int


@dataclass(frozen=True)
class Nginx:
    """A running nginx; each named server of it has a port and a log of its own."""

    work: Path
    ports: Mapping[str, int]

    def base(self, name: str = "plain") -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def url(self, path: str, name: str = "plain") -> str:
        return f"{self.base(name)}/{path}"

    def log(self, name: str = "plain") -> list[Served]:
        """What ``name`` has served. A line is written when its answer has ended."""
        lines = (self.work / f"{name}.log").read_text().splitlines()
        parts = (line.split("|") for line in lines)
        return [Served(path, method, int(status), span, int(sent)) for path, method, status, span, sent in parts]


@contextmanager
def nginx(work: Path, files: Path, **servers: str) -> Iterator[Nginx]:
    """An nginx that serves ``files``; ``servers`` names its servers and says what is special about each (none: ``plain``)."""
    program = shutil.which("nginx")
    assert program is not None, "mark the test with pytest.mark.needs('nginx')"
    work.mkdir(parents=True)
    servers = servers or {"plain": PLAIN}
    ports = dict(zip(servers, free_ports(len(servers)), strict=True))
    blocks = [_SERVER.format(name=name, port=ports[name], files=files, work=work, options=options) for name, options in servers.items()]
    config = work / "nginx.conf"
    config.write_text(_CONFIG.format(work=work, user="root" if os.geteuid() == 0 else "nobody", servers="\n  ".join(blocks)))
    process = subprocess.Popen([program, "-c", str(config), "-e", str(work / "start.log")], stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or all(map(listens, ports.values())))
        assert process.poll() is None, (work / "start.log").read_text()
        yield Nginx(work, ports)
    finally:
        process.terminate()
        process.wait(240)
