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

import trustme

ROOT = Path(__file__).resolve().parents[1]

NGINX = """
worker_processes 2; pid {work}/pid; error_log {work}/error.log crit; daemon off;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; tcp_nopush on; types {{ }} default_type application/x-tar;
  client_body_temp_path {work}/body; fastcgi_temp_path {work}/f; uwsgi_temp_path {work}/u; scgi_temp_path {work}/s;
  proxy_temp_path {work}/temp;
  {servers}
}}
"""
NGINX_ORIGIN = "server {{ listen 127.0.0.1:{http}; root {files}; }}"
NGINX_TLS_ORIGIN = "server {{ listen 127.0.0.1:{https} ssl; root {files}; ssl_certificate {chain}; ssl_certificate_key {chain}; }}"
NGINX_CACHE = "proxy_cache_path {work}/cache levels=1:2 keys_zone=shards:16m max_size=16g inactive=1h use_temp_path=off;"
NGINX_PROXY = """
  server {{ listen 127.0.0.1:{port};
    location / {{
      proxy_pass {origin}; proxy_http_version 1.1; proxy_set_header Connection ""; {trust}
      proxy_cache shards; proxy_cache_key {origin}$uri; proxy_cache_valid 200 1h; proxy_cache_lock on; proxy_max_temp_file_size 0;
      proxy_buffers 16 256k; proxy_buffer_size 64k; proxy_busy_buffers_size 512k;
    }}
  }}
"""
NGINX_TRUST = "proxy_ssl_trusted_certificate {authority}; proxy_ssl_verify on; proxy_ssl_name localhost;"


@dataclass(frozen=True)
class Spent:
    """Processor seconds of a server: its main process's first thread (Forebay's loop), that process's others, its children."""

    loop_s: float
    threads_s: float
    children_s: float

    @property
    def all_s(self) -> float:
        return self.loop_s + self.threads_s + self.children_s

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.loop_s - other.loop_s, self.threads_s - other.threads_s, self.children_s - other.children_s)


@dataclass(frozen=True)
class Server:
    """A running server: where it listens, and which process to account. ``tls_url``: what it has over https, or "".

    Of a caching proxy it is where it gives, over plain http, what it fetches over https.
    """

    name: str
    url: str
    pid: int
    tls_url: str = ""

    def cpu_s(self) -> float:
        """Processor seconds of the process and its children so far."""
        return self.spent().all_s

    def spent(self) -> Spent:
        """The same apart. Nanoseconds count; a child that has ended does not."""
        loop_s, main_s = _thread_s(self.pid), _process_s(self.pid)
        return Spent(loop_s, max(0.0, main_s - loop_s), sum(_process_s(pid) for pid in family(self.pid)[1:]))

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


def _process_s(pid: int) -> float:
    return time.clock_gettime(~pid << 3 | 2)  # the id of another process's processor clock, as the kernel makes them


def _thread_s(pid: int) -> float:
    """Of the first thread of a process."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


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


@dataclass(frozen=True)
class Authority:
    """A certificate authority of one run: its own certificate, and the chain and key of 127.0.0.1 and localhost, as PEM files."""

    certificate: Path
    chain: Path

    @classmethod
    def made(cls, directory: Path) -> Authority:
        authority, made = trustme.CA(), cls(directory / "authority.pem", directory / "server.pem")
        authority.cert_pem.write_to_path(made.certificate)
        authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(made.chain)
        return made


@contextmanager
def nginx(work: Path, files: Path, authority: Authority | None = None) -> Iterator[tuple[Server, Server]]:
    """nginx as the origin of ``files`` and, in processes of its own, as a caching proxy in front of it: (origin, proxy)."""
    with nginx_origin(work / "origin", files, authority) as origin, nginx_cache(work / "cache", origin, authority) as proxy:
        yield origin, proxy


@contextmanager
def nginx_origin(work: Path, files: Path, authority: Authority | None = None) -> Iterator[Server]:
    """Over https too where there is an ``authority``."""
    http, https = free_port(), free_port()
    servers = NGINX_ORIGIN.format(http=http, files=files)
    if authority is not None:
        servers += NGINX_TLS_ORIGIN.format(https=https, files=files, chain=authority.chain)
    with _nginx(work, servers, http) as child:
        yield Server("origin", f"http://127.0.0.1:{http}", child.pid, f"https://127.0.0.1:{https}" if authority is not None else "")


@contextmanager
def nginx_cache(work: Path, origin: Server, authority: Authority | None = None) -> Iterator[Server]:
    """Stores what it is asked for, in ``work``."""
    http, https = free_port(), free_port()
    servers = NGINX_CACHE.format(work=work) + NGINX_PROXY.format(port=http, origin=origin.url, trust="")
    if authority is not None:
        trust = NGINX_TRUST.format(authority=authority.certificate)
        servers += NGINX_PROXY.format(port=https, origin=origin.tls_url, trust=trust)
    with _nginx(work, servers, http) as child:
        yield Server("nginx", f"http://127.0.0.1:{http}", child.pid, f"http://127.0.0.1:{https}" if authority is not None else "")


@contextmanager
def _nginx(work: Path, servers: str, port: int) -> Iterator[subprocess.Popen[str]]:
    program = shutil.which("nginx")
    if program is None:
        sys.exit("nginx is not installed: apt-get install nginx")
    work.mkdir(parents=True)
    work.chmod(0o755)
    config = work / "nginx.conf"
    config.write_text(NGINX.format(work=work, servers=servers))
    with process([program, "-c", str(config), "-e", str(work / "error.log"), "-g", f"user {_user()};"]) as child:
        wait_for(port)
        yield child


def _user() -> str:
    return "root" if os.geteuid() == 0 else "nobody"


@contextmanager
def forebay(work: Path, *origins: str, cache_size: str = "16GB", authority: Authority | None = None) -> Iterator[Server]:
    """A sidecar that may reach ``origins``; ``authority``: whom it trusts, and no other."""
    work.mkdir(parents=True)
    run = work / "run"
    run.mkdir(mode=0o700)
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(run), "PYTHONPATH": f"{ROOT}/proxy:{ROOT}/loader"}
    environ = {name: value for name, value in environ.items() if not name.startswith("FOREBAY_")}
    if authority is not None:
        environ["SSL_CERT_FILE"] = str(authority.certificate)
    command = [sys.executable, "-m", "forebay_proxy", "serve", "--json", "--port", "0", "--socket", "off"]
    command += ["--cache-dir", str(work / "cache"), "--cache-size", cache_size]
    for origin in origins:
        command += ["--allow-origin", origin]
    with process(command, stdout=subprocess.PIPE, env=environ) as child:
        assert child.stdout is not None
        ready = json.loads(child.stdout.readline())
        yield Server("forebay", ready["url"], child.pid)
