"""The servers a benchmark compares, each started on a loopback port of its own and ended by its process id."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

NGINX = """
worker_processes 2; pid {work}/pid; error_log {work}/error.log crit; daemon off;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; tcp_nopush on; types {{ }} default_type application/x-tar;
  client_body_temp_path {work}/body; fastcgi_temp_path {work}/f; uwsgi_temp_path {work}/u; scgi_temp_path {work}/s;
  proxy_temp_path {work}/temp;
  proxy_cache_path {work}/cache levels=1:2 keys_zone=shards:16m max_size=16g inactive=1h use_temp_path=off;
  server {{ listen 127.0.0.1:{origin}; root {files}; }}
  server {{ listen 127.0.0.1:{proxy};
    location / {{
      proxy_pass http://127.0.0.1:{origin}; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_cache shards; proxy_cache_valid 200 1h; proxy_cache_lock on; proxy_max_temp_file_size 0; proxy_buffers 16 256k;
      proxy_buffer_size 64k; proxy_busy_buffers_size 512k;
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Server:
    """A running server: where it listens, and which process to account."""

    name: str
    url: str
    pid: int

    def cpu_s(self) -> float:
        """Processor seconds of the process and its children so far."""
        return sum(_cpu_ticks(pid) for pid in family(self.pid)) / CLOCK_TICKS

    def peak_rss_bytes(self) -> int:
        """The largest resident size of any of its processes."""
        return max(_peak_rss(pid) for pid in family(self.pid))


def family(pid: int) -> list[int]:
    """``pid`` and its descendants."""
    found = [pid]
    children = Path(f"/proc/{pid}/task/{pid}/children")
    for child in children.read_text().split():
        found += family(int(child))
    return found


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _peak_rss(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(command: list[str], **options: object) -> Iterator[subprocess.Popen[str]]:
    """A child that ends with the ``with``."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True, **options)  # type: ignore[call-overload]
    try:
        yield child
    finally:
        child.terminate()
        child.wait(20)
        if child.stdout is not None:
            child.stdout.close()


def wait_for(port: int, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextmanager
def nginx(work: Path, files: Path) -> Iterator[tuple[Server, Server]]:
    """nginx as the origin of ``files`` and, on a second port, as a caching proxy in front of it: (origin, proxy)."""
    program = shutil.which("nginx")
    if program is None:
        sys.exit("nginx is not installed: apt-get install nginx")
    work.mkdir(parents=True)
    work.chmod(0o755)
    origin, proxy = free_port(), free_port()
    config = work / "nginx.conf"
    config.write_text(NGINX.format(work=work, files=files, origin=origin, proxy=proxy))
    with process([program, "-c", str(config), "-e", str(work / "error.log"), "-g", f"user {_user()};"]) as child:
        wait_for(origin)
        wait_for(proxy)
        yield Server("origin", f"http://127.0.0.1:{origin}", child.pid), Server("nginx", f"http://127.0.0.1:{proxy}", child.pid)


def _user() -> str:
    return "root" if os.geteuid() == 0 else "nobody"


@contextmanager
def relay(work: Path, origin: Server) -> Iterator[Server]:
    """The one-thread relay of ``relay.py``."""
    work.mkdir(parents=True)
    command = [sys.executable, str(ROOT / "benchmarks/relay.py"), origin.url.rpartition(":")[2], str(work)]
    with process(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        yield Server("relay", f"http://127.0.0.1:{port}", child.pid)


@contextmanager
def forebay(work: Path, *origins: str, cache_size: str = "16GB") -> Iterator[Server]:
    """A sidecar that may reach ``origins``; its URL is the prefix of plain http shards."""
    work.mkdir(parents=True)
    run = work / "run"
    run.mkdir(mode=0o700)
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(run), "PYTHONPATH": f"{ROOT}/proxy:{ROOT}/loader"}
    environ = {name: value for name, value in environ.items() if not name.startswith("FOREBAY_")}
    command = [sys.executable, "-m", "forebay_proxy", "serve", "--json", "--port", "0", "--socket", "off"]
    command += ["--cache-dir", str(work / "cache"), "--cache-size", cache_size]
    for origin in origins:
        command += ["--allow-origin", origin]
    with process(command, stdout=subprocess.PIPE, env=environ) as child:
        assert child.stdout is not None
        ready = json.loads(child.stdout.readline())
        yield Server("forebay", ready["url"], child.pid)
