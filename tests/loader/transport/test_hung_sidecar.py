"""A sidecar that hangs is left for another way where there is one, and waited for where there is none; bytes are always compared."""

from __future__ import annotations

import io
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_proxy import FakeServer, Held, Refuse, ramp

from forebay_loader import ProxyUnreachable, ShardReadError, counters
from forebay_loader.base.notices import warn_node
from forebay_loader.base.timeouts import DEFAULT_LIMITS
from forebay_loader.files.file_system import ForebayFileSystem
from forebay_loader.stream import source_order
from forebay_loader.stream.range_reads import read_range
from forebay_loader.stream.shard_stream import ShardStream
from forebay_loader.transport import hung_sidecar
from forebay_loader.transport.hung_sidecar import HUNG
from forebay_proxy.wire.commands.sources import parse_source

BODY = ramp(1_000_000)
CUT = 400_000
S3 = "/s3/bucket/x.tar"
HANGS_S = 1.5  # longer than it is asked whether it turns
# All other patience is short: what waits, waits because of the one that counts here.
BEARS = replace(DEFAULT_LIMITS, look_s=0.1, connect_s=0.5, silence_s=0.3, open_s=0.1, resume_s=0.2, pause_s=0.01, jitter_s=0.0)
GIVES_UP = replace(BEARS, patience_s=1.0)

pytestmark = [pytest.mark.usefixtures("short_question")]


@pytest.fixture
def short_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay_loader.transport.hung_sidecar.TURNS_S", 0.2)


@pytest.fixture
def sidecar(proxy: FakeServer) -> Iterator[FakeServer]:
    """One that hangs."""
    proxy.put(S3, BODY)
    proxy.turning.clear()
    yield proxy
    proxy.turning.set()


@pytest.fixture
def inside(sidecar: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """One that answers, and hangs (once ``turning`` is cleared) inside the shard."""
    monkeypatch.setattr("forebay_loader.transport.hung_sidecar.TURNS_S", 1.0)  # before that it must be found to turn
    sidecar.turning.set()
    gate = threading.Event()
    sidecar.fault(S3, Held(CUT, gate))
    yield sidecar
    gate.set()


@contextmanager
def soon(act: Callable[[], object]) -> Iterator[None]:
    timer = threading.Timer(HANGS_S, act)
    timer.start()
    try:
        yield
    finally:
        timer.join()


@contextmanager
def when_waiting(act: Callable[[], object]) -> Iterator[None]:
    """``act`` as soon as somebody is told that the sidecar is waited for: by then it was found to hang, however slow this machine."""

    def told(text: str) -> None:
        warn_node(text)
        if "waiting" in text:
            act()

    with pytest.MonkeyPatch.context() as patch:
        for module in (hung_sidecar, source_order):
            patch.setattr(module, "warn_node", told)
        yield


def opened(text: str = "s3://bucket/x.tar", own: Callable[[str], object] | None = None, **how: float) -> ShardStream:
    source = parse_source(text)
    assert source is not None
    return ShardStream(source, "job-1/0/0/1.1", limits=replace(BEARS, **how), own_open=own)


def fails(text: str) -> object:
    raise OSError("(('aws',), {}): exit 6 (read)")


def http(server: FakeServer, origin: FakeServer) -> str:
    """The URL of a shard of ``origin``, which the sidecar has too."""
    for where, target in ((server, f"/http/127.0.0.1:{origin.port}/x.tar"), (origin, "/x.tar")):
        where.put(target, BODY)
    return f"{origin.url}/x.tar"


# No other way


def test_it_is_waited_for(sidecar: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    """Where no other way leads to the bytes, with the very first question: one that is slow would never answer one that is given up.
    A person is told once, meanwhile.
    """
    with when_waiting(sidecar.turning.set), opened() as shard:
        assert shard.read() == BODY
    assert len(sidecar.asked(S3)) == 1
    assert counters()["fallback_total"] == 0
    (told,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "runs but does not answer" in told
    assert re.search(r"no other way leads to it: waiting, for up to 3[0-3]\d s", told)  # 330 less what a busy machine took until then


def test_inside_a_shard(inside: FakeServer) -> None:
    """The rest of the very bytes."""
    with opened() as shard:
        head = shard.read(CUT)  # all that comes before it hangs: a busy machine may be slow to bring it
        inside.turning.clear()
        with when_waiting(inside.turning.set):
            assert head + shard.read() == BODY
    assert [request.headers.get("Range", "") for request in inside.asked(S3)] == ["", f"bytes={CUT}-"]


def test_one_that_never_comes_back_is_an_error_after_all_patience(sidecar: FakeServer) -> None:
    """Not before; and it says how long that was."""
    began_s = time.monotonic()
    with pytest.raises(ProxyUnreachable, match=r"does not answer.*; waited \d+ s; webdataset has no opener of its own for s3"):
        opened(patience_s=2.0)
    assert time.monotonic() - began_s >= 2.0


def test_it_is_waited_for_again_at_the_next_shard(sidecar: FakeServer) -> None:
    """However long it has hung already: whoever passes over a failed shard would lose all of them."""
    with pytest.raises(ProxyUnreachable):
        opened(patience_s=1.0)
    with when_waiting(sidecar.turning.set), opened() as shard:
        assert shard.read() == BODY


def test_one_that_is_started_anew_meanwhile(sidecar: FakeServer) -> None:
    """Killed by whoever watches over it: the question breaks, and is asked again until it is there."""

    def renewed() -> None:
        sidecar.stop()
        sidecar.turning.set()
        threading.Timer(1.0, sidecar.start).start()

    with when_waiting(renewed), opened() as shard:
        assert shard.read() == BODY


def test_one_whose_unix_socket_takes_nobody_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its backlog is full, which a unix socket says at once: it hangs no less, is waited for as long, and is known to hang at the next."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(tmp_path / "s"))
        listener.listen(0)
        waiting.connect(str(tmp_path / "s"))
        monkeypatch.delenv("FOREBAY_URL", raising=False)
        monkeypatch.setenv("FOREBAY_SOCKET", str(tmp_path / "s"))
        began_s = time.monotonic()
        with pytest.raises(ProxyUnreachable, match=r"no connection to unix:.*; waited \d+ s"):
            opened(patience_s=1.0)
        assert time.monotonic() - began_s >= 1.0
        assert HUNG.known()


# Another way


def test_another_way_is_taken_at_once(sidecar: FakeServer, origin: FakeServer) -> None:
    """Its origin has it."""
    with opened(http(sidecar, origin)) as shard:
        assert shard.read() == BODY
    assert counters()["opened_direct"] == 1


def test_it_is_waited_for_when_the_other_way_fails(sidecar: FakeServer) -> None:
    """A command that this machine does not have, a login that only the sidecar has."""
    with when_waiting(sidecar.turning.set), opened("pipe:aws s3 cp s3://bucket/x.tar -", fails) as shard:
        assert shard.read() == BODY
    assert counters()["failed"] == 0


def test_it_is_waited_for_when_the_other_way_fails_inside_a_shard(inside: FakeServer) -> None:
    """It goes on behind what both have given, and compares that first: nothing names the version of what the other way gave."""

    class Breaks(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() >= 2 * CUT:
                raise OSError("exit 18 (read)")
            return super().read(min(size or 0, CUT // 10, 2 * CUT - self.tell()))

    with opened("pipe:aws s3 cp s3://bucket/x.tar -", lambda _: Breaks(BODY)) as shard:
        head = shard.read(CUT)  # all that comes before it hangs: a busy machine may be slow to bring it
        inside.turning.clear()
        with when_waiting(inside.turning.set):
            assert head + shard.read() == BODY
    assert "Range" not in inside.asked(S3)[-1].headers


@pytest.mark.parametrize("status", [403, 404])
def test_it_is_waited_for_when_the_origin_refuses(sidecar: FakeServer, origin: FakeServer, status: int) -> None:
    """The sidecar may have a login that this process has not; some origins say 404 to those without one."""
    url = http(sidecar, origin)
    origin.fault("/x.tar", Refuse(status))
    with when_waiting(sidecar.turning.set), opened(url, resume_s=60.0) as shard:
        assert shard.read() == BODY


@pytest.mark.parametrize("status", [403, 404])
def test_what_the_origin_refuses_is_final_sooner(sidecar: FakeServer, origin: FakeServer, status: int) -> None:
    """After as long as a broken stream asks again, not all the patience there is for one that is the only way."""
    url = http(sidecar, origin)
    origin.fault("/x.tar", Refuse(status))
    began_s = time.monotonic()
    with pytest.raises(ShardReadError, match=f"its origin answered {status}.*runs but does not answer.*waited") as caught:
        opened(url, resume_s=2.0)
    assert caught.value.status == status
    assert 1.5 <= time.monotonic() - began_s < 100


def test_what_the_origin_refuses_is_final_at_once_where_it_has_hung_for_long(
    sidecar: FakeServer, origin: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever passes over missing shards does not wait for each of them."""
    url = http(sidecar, origin)
    with opened(url) as shard:
        shard.read()
    monkeypatch.setattr(HUNG, "_since_s", time.monotonic() - 61.0)
    origin.fault("/x.tar", Refuse(404))
    began_s = time.monotonic()
    with pytest.raises(ShardReadError, match="its origin answered 404"):
        opened(url, resume_s=60.0)
    assert time.monotonic() - began_s < 30


def test_it_is_used_again_as_soon_as_it_answers(sidecar: FakeServer, origin: FakeServer) -> None:
    """While the origin cannot be reached from here: nobody waits for the end of its patience."""
    url = http(sidecar, origin)
    origin.stop()
    began_s = time.monotonic()
    with soon(sidecar.turning.set), opened(url, resume_s=1000.0) as shard:
        assert shard.read() == BODY
    assert time.monotonic() - began_s < 100
    assert counters()["opened_direct"] == 0


def test_a_way_that_recovers_first_is_used(sidecar: FakeServer, origin: FakeServer) -> None:
    """Nobody waits for a sidecar longer than for the origin."""
    url = http(sidecar, origin)
    origin.stop()
    with soon(origin.start), opened(url, resume_s=60.0) as shard:
        assert shard.read() == BODY
    assert counters()["opened_direct"] == 1


def test_a_failure_of_all_says_what_each_said(sidecar: FakeServer, origin: FakeServer) -> None:
    """It is the other way's error, as without a sidecar; the sidecar's part follows, and how long it was waited for."""
    url = http(sidecar, origin)
    origin.stop()
    with pytest.raises(ShardReadError) as caught:
        opened(f"pipe:curl -s {url}", fails, patience_s=2.0)
    said = str(caught.value)
    assert "exit code 6 (before that the origin said: no connection to the origin" in said
    assert re.search(r"runs but does not answer \(stopped, frozen, swapping\?\); waited \d+ s", said)
    assert counters()["failed"] == 1


def test_bytes_beyond_the_end_are_not_waited_for(inside: FakeServer) -> None:
    """What came cannot be continued by anybody."""
    with opened("pipe:aws s3 cp s3://bucket/x.tar -", lambda _: io.BytesIO(BODY + b"x" * 300_000)) as shard:
        shard.read(1000)
        inside.turning.clear()
        with pytest.raises(ShardReadError, match="longer now"):
            shard.read()


# Parts of a shard, and fsspec


def test_a_range_is_waited_for(sidecar: FakeServer) -> None:
    """There is no other way to a part of a shard."""
    source = parse_source("s3://bucket/x.tar")
    assert source is not None
    with when_waiting(sidecar.turning.set):
        assert read_range(source, 10, 100, sidecar.shown[S3].etag, BEARS) == BODY[10:110]


def test_a_range_is_given_up_after_all_patience(sidecar: FakeServer) -> None:
    """In words."""
    source = parse_source("s3://bucket/x.tar")
    assert source is not None
    with pytest.raises(ProxyUnreachable, match=r"does not answer.*waited \d+ s; parts of a shard"):
        read_range(source, 10, 100, sidecar.shown[S3].etag, GIVES_UP)


def test_a_file_of_fsspec_is_read_past_it(sidecar: FakeServer, origin: FakeServer) -> None:
    """After all patience, and from then on at once; every process has its store's library for that."""
    url = http(sidecar, origin)
    fs = ForebayFileSystem(target_protocol="http", limits=GIVES_UP)
    assert fs.cat_file(url, 0, 100) == BODY[:100]
    assert fs.cat_file(url, 100, 200) == BODY[100:200]


def test_a_file_of_fsspec_that_is_open(sidecar: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever block it hangs at."""
    sidecar.turning.set()
    with ForebayFileSystem(limits=BEARS).open("s3://bucket/x.tar", block_size=1000) as file:
        head = file.read(10)
        sidecar.turning.clear()
        with when_waiting(sidecar.turning.set):
            file.seek(CUT)
            assert head + file.read(100) == BODY[:10] + BODY[CUT : CUT + 100]
