"""The JSON routes of a sidecar without a sidecar: what verbs talk to in tests, in this process or as a program of its own."""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

from forebay_proxy.node.runfile import RunDirectory, RunFile, process_start_time


def status_of(url: str, **changes: Any) -> dict[str, Any]:
    """A plausible ``/v1/status``; ``changes`` replace whole members."""
    return {
        "forebay": "0.0.0", "instance": "00112233aabbccdd", "pid": os.getpid(), "started_at": 1.0, "uptime_s": 11_520.0, "state": "ready",
        "url": url, "socket": None, "fd_socket": None, "cache_dir": "/cache/forebay", "fingerprint": "0" * 16,
        "cache": {
            "capacity_bytes": 10**10, "effective_bytes": 8 * 10**9, "stored_bytes": 4 * 10**9, "reserved_bytes": 0, "doomed_bytes": 0,
            "overhead_bytes": 10**6, "leased_bytes": 2 * 10**8, "shards": 12, "segments": 500, "in_flight": 2,
        },
        "requests": {"hit": 0, "collapsed": 0, "partial": 0, "miss": 0, "bypass": 0},
        "bytes": {"sent": 0, "hit": 0, "origin": 0, "saved": 0},
        "reader_wait_s": 0.0, "errors": 0, "jobs": {}, "anonymous": tally_of(), "readers": [], "plans": [], "notices": [], **changes,
    }  # fmt: skip


def tally_of(requests: int = 0, sent: int = 0, hit: int = 0, wait_s: float = 0.0, errors: int = 0) -> dict[str, Any]:
    """One job of ``/v1/status``, or its anonymous readers."""
    return {"requests": {"hit": requests}, "bytes": {"sent": sent, "hit": hit}, "reader_wait_s": wait_s, "errors": errors}


class FakeSidecar:
    """Serves on a port of the kernel's choice while entered. ``requests`` holds (method, path, headers, body) of every one."""

    def __init__(self, *, token: str = "", on_unix: Path | None = None, port: int = 0) -> None:
        self.token = token
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.shards: list[dict[str, Any]] = []
        self.evicted: dict[str, Any] = {"shards": 0, "bytes": 0, "leased": 0}
        self.verify_events: list[dict[str, Any]] = []
        self.warm_events: Callable[[list[str]], list[dict[str, Any]]] = stored_all
        self.ready = True
        self.full = False  # takes no more holds
        self.outage = False  # of the origin: a question about a shard gets no answer
        self.open_connections = self.connection_changes = 0
        self.ended = threading.Event()  # holds end with it
        self.connections_changed = threading.Condition()
        self._server = _Server(self, port) if on_unix is None else _UnixServer(self, on_unix)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}" if on_unix is None else f"unix:{on_unix}"
        self.status = status_of(self.url if on_unix is None else "http://127.0.0.1:7070")

    def __enter__(self) -> FakeSidecar:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait_for_connections(self, count: int) -> None:
        with self.connections_changed:
            assert self.connections_changed.wait_for(lambda: self.open_connections == count, 60), self.open_connections

    def paths(self) -> list[str]:
        return [path for _, path, _, _ in self.requests]

    def announce(self, directory: RunDirectory, **changes: Any) -> ExitStack:
        """Claim a name and write the run file, as the service does; closing the result takes it back."""
        stack = ExitStack()
        record = run_file_of(self, directory, **changes)
        stack.enter_context(directory.claim(record.fingerprint)).announce(record)
        return stack


def run_file_of(sidecar: FakeSidecar, directory: RunDirectory, **changes: Any) -> RunFile:
    given = {"fingerprint": directory.fingerprint(os.environ), "cache_dir": "/cache/forebay", "started_by": "serve", **changes}
    given.setdefault("pid", os.getpid())
    start = process_start_time(given["pid"])
    assert start is not None
    return RunFile(url=sidecar.url, socket=None, start_time=start, instance="00112233aabbccdd", **given)


def stored_all(shards: list[str]) -> list[dict[str, Any]]:
    done = [{"event": "shard", "shard": shard, "result": "stored", "bytes": 1000, "error": ""} for shard in shards]
    totals = {"stored": len(shards), "present": 0, "no_room": 0, "failed": 0, "bytes": 1000 * len(shards)}
    return [{"event": "progress", "done_shards": 0, "shards": len(shards), "done_bytes": 0}, *done, {"event": "end", **totals}]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeSidecar
    disable_nagle_algorithm = False  # a unix socket has none

    def setup(self) -> None:
        self.fake = self.server.fake  # type: ignore[attr-defined]
        super().setup()
        self._count(+1)

    def finish(self) -> None:
        super().finish()
        self._count(-1)

    def _count(self, change: int) -> None:
        with self.fake.connections_changed:
            self.fake.open_connections += change
            self.fake.connection_changes += 1
            self.fake.connections_changed.notify_all()

    def log_message(self, format: str, *args: Any) -> None: ...

    def address_string(self) -> str:
        return "client"

    def do_GET(self) -> None:
        self._record(b"")
        answers: dict[str, Any] = {
            "/v1/status": self.fake.status, "/v1/shards": {"shards": self.fake.shards}, "/v1/plans": {"plans": []}, "/healthz": {},
        }  # fmt: skip
        if self.fake.token and self.headers["Forebay-Token"] != self.fake.token:
            self._problem(403, "a client on another address must send the header Forebay-Token")
        elif self.path == "/readyz":
            self._json({}) if self.fake.ready else self._problem(503, "the sidecar is draining")
        elif self.path == "/v1/hold":
            self._hold()
        elif self.path in answers:
            self._json(answers[self.path])
        elif self.fake.outage:
            self.fake.ended.wait()
            self.close_connection = True
        elif self.path.startswith("/v1/index/"):
            self._problem(409, "its sample index is made once all of it is here")
        else:
            self._problem(404, f"no such path {self.path}")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self._record(body)
        if self.path == "/v1/evict":
            self._json(self.fake.evicted)
        elif self.path.partition("?")[0] == "/v1/verify":
            self._lines(self.fake.verify_events)
        elif self.path.partition("?")[0] == "/v1/warm":
            shards = (
                json.loads(body)["shards"]
                if self.headers["Content-Type"] == "application/json"
                else list(map(json.loads, body.splitlines()))
            )
            self._lines(self.fake.warm_events(shards))

    def _hold(self) -> None:
        """Until the client leaves or the sidecar ends."""
        if not self.fake.ready:
            return self._problem(503, "the sidecar is draining")
        if self.fake.full:
            return self._problem(503, "256 holds are open already")
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        while not self.fake.ended.is_set() and not select.select([self.connection], [], [], 0.02)[0]:
            pass
        return None

    def _record(self, body: bytes) -> None:
        self.fake.requests.append((self.command, self.path, dict(self.headers), body))

    def _json(self, value: Any, status: int = 200, kind: str = "application/json") -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _problem(self, status: int, detail: str) -> None:
        self._json({"title": "Refused", "status": status, "detail": detail, "next_step": "mend it"}, status, "application/problem+json")

    def _lines(self, events: list[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            if event["event"] == "cut":  # the sidecar ends here
                self.close_connection = True
                return
            line = json.dumps(event).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # a held connection must not keep a test from ending

    def __init__(self, fake: FakeSidecar, port: int) -> None:
        self.fake = fake
        super().__init__(("127.0.0.1", port), _Handler)


class _UnixServer(_Server):
    address_family = socket.AF_UNIX

    def __init__(self, fake: FakeSidecar, path: Path) -> None:
        self.fake = fake
        super(ThreadingHTTPServer, self).__init__(str(path), _Handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)


def main() -> int:
    """As a program: takes the flags of ``forebay serve``, announces itself, ends on SIGTERM or when idle for ``--idle-exit-s``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--idle-exit-s", type=float, default=60.0)
    parser.add_argument("--cache-dir", default="/cache/forebay")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--fail", default="")  # end at once with this line, as a sidecar does that cannot start
    parser.add_argument("--hang", action="store_true")  # never get ready
    parser.add_argument("--gate", default="")  # a FIFO: get ready once its writer has closed it
    parser.add_argument("--start-lock", type=int)
    arguments, _ = parser.parse_known_args()
    if arguments.fail:
        sys.stderr.write(f"forebay: {arguments.fail}\n")
        return 2
    signal.signal(signal.SIGTERM, _end)
    if arguments.hang:
        signal.pause()
    if arguments.gate:
        Path(arguments.gate).read_bytes()
    directory = RunDirectory.of(os.environ)
    with FakeSidecar(port=arguments.port) as fake, fake.announce(directory, cache_dir=arguments.cache_dir, started_by="run"):
        fake.status = {**fake.status, "cache_dir": arguments.cache_dir}
        with suppress(BrokenPipeError):  # a starter that was killed
            os.write(1, json.dumps({"event": "ready", "url": fake.url, "pid": os.getpid()}).encode() + b"\n")
        if arguments.start_lock is not None:
            os.close(arguments.start_lock)
        with fake.connections_changed:
            seen = -1
            while fake.open_connections or seen != fake.connection_changes:
                seen = fake.connection_changes
                # Not ``wait``: a connection that ends as its time runs out would pass for a whole idle time.
                fake.connections_changed.wait_for(lambda seen=seen: fake.connection_changes != seen, arguments.idle_exit_s)
    return 0


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
