"""A training whose origin is down is told so, by its own process, while the sidecar still asks that origin again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import ClassVar

import pytest
from support.sidecar import Sidecar, environment, running
from support.tars import tar_shard
from support.warm_python import python_program

pytestmark = [pytest.mark.timeout(120)]

SHARDS, SAMPLES = 3, 5
BODY = tar_shard(0, SAMPLES, 1000)

_TRAINING = """
import json, sys
import forebay_loader as fb
print(json.dumps([sample["__key__"] for sample in fb.WebDataset(sys.argv[1:], shardshuffle=False)]), flush=True)
"""


class _Origin(BaseHTTPRequestHandler):
    """One tar under any name; 503 until ``up``, or no answer until then."""

    protocol_version = "HTTP/1.1"
    up: ClassVar[Event]
    mute: ClassVar[bool]

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.mute:
            self.up.wait()
        status = 200 if self.up.is_set() else 503
        self.send_response(status)
        self.send_header("ETag", '"v1"')
        self.send_header("Content-Length", str(len(BODY) if status == 200 else 0))
        self.end_headers()
        if status == 200 and self.command == "GET":
            self.wfile.write(BODY)


@contextmanager
def origin(*, mute: bool = False) -> Iterator[tuple[str, Event]]:
    """Its address, and what makes it work."""
    up = Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Origin", (_Origin,), {"up": up, "mute": mute})) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", up
        finally:
            up.set()
            server.shutdown()
            thread.join()


def trained(place: Path, sidecar: Sidecar, up: Event, urls: list[str]) -> tuple[list[str], list[str]]:
    """The keys it read, and what it said; the origin works from its first word about the wait on."""
    environ = environment(place, FOREBAY_URL=sidecar.url)
    said = []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with python_program(["-c", _TRAINING, *urls], environ, place, text=True, **pipes) as training:
        assert training.stderr is not None
        assert training.stdout is not None
        for line in training.stderr:
            said.append(line)
            if "waiting for" in line:
                up.set()
        return json.loads(training.stdout.read()), said


@pytest.mark.parametrize(
    ("mute", "cause"),
    [(False, "{base}: the origin answered 503; it is asked again"), (True, "{base} has not answered yet")],
    ids=["503", "mute"],
)
def test_a_wait_is_told_with_its_cause(mute: bool, cause: str, place: Path) -> None:
    """Once, though each shard waits, in the sidecar's words; afterwards every sample is read."""
    with origin(mute=mute) as (base, up), running(place, "--cache-size", "100MB", allow=[base]) as sidecar:
        urls = [f"{base}/{number}.tar" for number in range(SHARDS)]
        keys, said = trained(place, sidecar, up, urls)
    assert len(keys) == SHARDS * SAMPLES
    [line] = [line for line in said if "waiting for" in line]
    assert line.startswith(f"shard {base}/0.tar: waiting for ")
    assert line.endswith(cause.format(base=base) + "\n")
