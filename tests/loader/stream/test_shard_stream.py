"""A shard's stream against every fault on its way; bytes are always compared."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.fake_proxy import Cut, FakeServer, Held, Refuse, Silent, ramp
from support.ports import free_ports

from forebay_loader import Limits, ProxyUnreachable, ShardChanged, ShardReadError, counters
from forebay_loader.base.activity import ORIGIN, PROXY, here
from forebay_loader.stream.range_reads import read_range
from forebay_loader.stream.shard_stream import ShardStream
from forebay_loader.transport.source_timeout import DEAD
from forebay_proxy.wire.commands.sources import parse_source

QUICK = Limits(resume_s=0.4, open_s=0.1, pause_s=0.01, jitter_s=0.0)  # where the sidecar is gone for good: the wait is in vain
PATIENT = Limits(resume_s=60.0, open_s=60.0, pause_s=0.01, longest_pause_s=0.05, jitter_s=0.0)  # where it is there, or comes back
HASTY = Limits(silence_s=0.3, pause_s=0.01, jitter_s=0.0)  # where somebody is silent for ever
READER = "job-1/0/0/1.1"
BODY = ramp(1_000_000)
CUT = 400_000


class World:
    """One shard at a fake origin, shown by a fake sidecar too."""

    def __init__(self, proxy: FakeServer, origin: FakeServer) -> None:
        self.proxy = proxy
        self.origin = origin
        self.url = f"{origin.url}/data/x.tar"
        self.target = f"/http/127.0.0.1:{origin.port}/data/x.tar"
        self.show(BODY)

    def show(self, body: bytes, **how: object) -> None:
        self.proxy.put(self.target, body, **how)
        self.origin.put("/data/x.tar", body, **how)

    def open(self, limits: Limits = PATIENT, text: str = "", own: Callable[[str], object] | None = None) -> ShardStream:
        source = parse_source(text or self.url)
        assert source is not None
        return ShardStream(source, READER, limits=limits, own_open=own)

    def read(self, limits: Limits = PATIENT, text: str = "", own: Callable[[str], object] | None = None) -> bytes:
        with self.open(limits, text, own) as stream:
            return stream.read()

    def dies(self, target: str) -> None:
        """The sidecar does, for good, inside the shard."""
        self.proxy.shown.setdefault(target, self.proxy.shown[self.target])
        self.proxy.fault(target, Cut(CUT, lambda: threading.Thread(target=self.proxy.stop).start()))

    def direct(self) -> list[str]:
        """The Range header of each request that reached the origin."""
        return [request.headers.get("Range", "") for request in self.origin.requests]


@pytest.fixture
def world(proxy: FakeServer, origin: FakeServer) -> World:
    return World(proxy, origin)


def own(body: bytes) -> Callable[[str], io.BytesIO]:
    return lambda text: io.BytesIO(body)


# Without faults


@pytest.mark.parametrize("size", [0, 1, 10_240, 262_144, 262_145, 1_000_000])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_whole_shard(world: World, size: int, framing: str) -> None:
    """Any length, known or not, arrives whole through the sidecar alone."""
    world.show(BODY[:size], framing=framing)
    with world.open() as stream:
        assert stream.read() == BODY[:size]
        assert stream.read(1) == b""
    assert world.origin.requests == []
    assert counters()["opened"] == 1
    assert counters()["bytes_proxy"] == size


def test_read_gives_as_much_as_asked(world: World) -> None:
    """Every read but the last gives exactly n bytes, as tarfile expects, and readinto fills its room; a closed stream says so."""
    room = bytearray(300_000)
    with world.open() as stream:
        assert stream.readinto(room) == 300_000
        parts = list(iter(lambda: stream.read(10_240), b""))
    assert b"".join([room, *parts]) == BODY
    assert {len(part) for part in parts[:-1]} == {10_240}
    with pytest.raises(ValueError, match="closed"):
        stream.read(1)


def test_reader_and_credential_headers_travel(world: World) -> None:
    """The sidecar learns who reads, and what the command would have sent, less what would break the request."""
    text = f"pipe:curl -s -L {world.url} -H 'Authorization: Bearer secret-1'"
    with world.open(text=text) as stream:
        stream.read()
    (request,) = world.proxy.requests
    assert request.headers["Forebay-Reader"] == READER
    assert request.headers["Authorization"] == "Bearer secret-1"
    assert request.headers["Accept-Encoding"] == "identity"
    assert "secret-1" not in repr(stream)


def test_connection_is_free_before_close(world: World) -> None:
    """The last byte frees the connection: webdataset opens the next shard while it still holds the old one."""
    first, second = world.open(), None
    assert first.read(len(BODY)) == BODY
    second = world.open()
    assert second.read() == BODY
    assert len({request.connection for request in world.proxy.requests}) == 1
    first.close()
    second.close()


def test_changed_variable_is_followed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """FOREBAY_URL is read at each open."""
    with FakeServer().running() as other:
        other.shown = world.proxy.shown
        monkeypatch.setenv("FOREBAY_URL", other.url)
        with world.open() as stream:
            assert stream.read() == BODY
        assert len(other.requests) == 1
    assert world.proxy.requests == []


# The sidecar breaks and comes back


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("after", [0, 1, CUT, len(BODY) - 1, len(BODY)])
def test_cut_mid_body(world: World, after: int, framing: str) -> None:
    """A cut anywhere is resumed at the next byte, whether the length is known or not."""
    world.show(BODY, framing=framing)
    world.proxy.fault(world.target, Cut(after))
    assert world.read() == BODY
    assert world.origin.requests == []
    again = world.proxy.asked(world.target)[1:]
    if again and after:
        assert again[0].headers["Range"] == f"bytes={after}-"
        assert again[0].headers["If-Match"] == world.proxy.shown[world.target].etag


def test_many_cuts(world: World) -> None:
    """Each byte that arrives starts the patience anew: any number of cuts is survived."""
    world.proxy.fault(world.target, *[Cut(90_000)] * 10)
    assert world.read() == BODY
    assert counters()["resumed"] == 10
    assert counters()["fallback_total"] == 0


def test_sidecar_restarts_mid_body(world: World) -> None:
    """A sidecar that dies and comes back within the limit is waited for."""
    restarter = threading.Timer(0.2, world.proxy.start)
    world.proxy.fault(world.target, Cut(CUT, lambda: threading.Thread(target=stop_then(world.proxy, restarter)).start()))
    assert world.read() == BODY
    restarter.join()
    assert world.origin.requests == []
    assert counters()["resumed"] == 1


def stop_then(proxy: FakeServer, timer: threading.Timer) -> Callable[[], None]:
    def act() -> None:
        proxy.stop()
        timer.start()

    return act


def test_restarted_sidecar_without_ranges(world: World) -> None:
    """A 200 to our Range is read from 0, what was delivered is skipped and compared."""
    world.show(BODY, ranges=False)
    world.proxy.fault(world.target, Cut(CUT))
    assert world.read() == BODY


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_trouble_is_waited_for(world: World, status: int) -> None:
    """Origin trouble, told by the sidecar, is waited for as it wishes."""
    world.proxy.fault(world.target, *[Refuse(status, headers=(("Retry-After", "0"),))] * 3)
    assert world.read() == BODY
    assert len(world.proxy.requests) == 4
    assert world.origin.requests == []


def test_silent_sidecar_that_turns(world: World) -> None:
    """Silence of a sidecar whose /healthz answers is borne: it is asked again, not left."""
    gate = threading.Event()
    world.proxy.fault(world.target, Held(CUT, gate), Held(0, gate))
    try:
        with world.open(HASTY) as stream:
            assert stream.read() == BODY
    finally:
        gate.set()
    assert len([request for request in world.proxy.requests if request.target == "/healthz"]) >= 2
    assert world.origin.requests == []


# The sidecar is gone for good


def test_http_goes_on_at_the_origin(world: World) -> None:
    """An http source is resumed at its origin, from the same byte, held to the same version."""
    world.dies(world.target)
    assert world.read(QUICK) == BODY
    assert world.direct() == [f"bytes={CUT}-"]
    assert world.origin.requests[0].headers["If-Match"] == world.origin.shown["/data/x.tar"].etag
    assert counters()["resumed_direct"] == counters()["fallback_total"] == 1
    assert counters()["bytes_direct"] == len(BODY) - CUT


def test_made_up_etag_is_not_sent_to_the_origin(world: World) -> None:
    """An ETag the sidecar made says nothing to the origin: the rest is proven by comparing from byte 0."""
    world.proxy.put(world.target, BODY, etag='"fb-123"')
    world.dies(world.target)
    assert world.read(QUICK) == BODY
    assert world.direct() == [""]


def test_origin_that_hides_its_etag_in_ranges(world: World) -> None:
    """A 206 without an ETag proves nothing; the origin is read from 0 and compared."""
    world.origin.put("/data/x.tar", BODY, etag="", honours_if_match=False)
    world.dies(world.target)
    assert world.read(QUICK) == BODY
    assert world.direct() == [f"bytes={CUT}-", ""]


def test_origin_is_resumed_too(world: World) -> None:
    """Without the sidecar a cut at the origin is resumed as well."""
    world.proxy.stop()
    world.origin.fault("/data/x.tar", Cut(CUT), Cut(100_000))
    assert world.read(Limits(open_s=0.1, pause_s=0.01, jitter_s=0.0)) == BODY
    assert world.direct() == ["", f"bytes={CUT}-", f"bytes={CUT + 100_000}-"]


def test_dead_at_open(world: World) -> None:
    """A new open waits for the sidecar, then reads at the origin; the next does not wait again."""
    world.proxy.stop()
    for limits in (QUICK, PATIENT):
        began_s = time.monotonic()
        with world.open(limits) as stream:
            assert stream.read() == BODY
        assert time.monotonic() - began_s < 30
    assert world.direct() == ["", ""]
    assert counters()["opened_direct"] == counters()["fallback_total"] == 2
    assert DEAD.known()


def test_a_restart_is_waited_for_where_no_other_way_leads_to_the_bytes(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A supervisor takes seconds; for as long as a broken stream asks again, each time anew, with one warning."""
    world.proxy.put("/s3/bucket/x.tar", BODY)
    world.proxy.stop()
    DEAD.found()
    starter = threading.Timer(1.0, world.proxy.start)
    starter.start()
    limits = replace(QUICK, open_s=0.05, resume_s=60.0, tell_s=0.2)
    try:
        with world.open(limits, "s3://bucket/x.tar") as stream:
            assert stream.read() == BODY
    finally:
        starter.join()
    (told,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "asking the sidecar again, for up to 60 s" in told


def test_one_that_nobody_ever_named_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing that could be restarted."""
    monkeypatch.delenv("FOREBAY_URL")
    began_s = time.monotonic()
    with pytest.raises(ProxyUnreachable, match="no sidecar is named"):
        world.open(replace(QUICK, resume_s=100.0), "s3://bucket/x.tar")
    assert time.monotonic() - began_s < 50


def test_trouble_beyond_the_limit(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A sidecar that answers 503 for longer than the limit is left for the origin; nobody is asked whether it runs."""
    world.proxy.fault(world.target, *[Refuse(503)] * 1000)
    assert world.read(QUICK) == BODY
    assert world.direct() == [""]
    assert "going on without the sidecar" in caplog.text
    assert "Is it running?" not in caplog.text


def test_a_long_wait_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Once, while it lasts: whoever mistyped a host need not wait for the end of all patience to read why nothing moves."""
    world.proxy.fault(world.target, *[Refuse(503, "no such host")] * 3)
    assert world.read(replace(PATIENT, tell_s=0.0)) == BODY
    (told,) = [record.getMessage() for record in caplog.records if "asking the sidecar again, for up to 60 s" in record.getMessage()]
    assert "no such host" in told


def named(world: World, errno: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sidecar says that the host's name does not exist; the loader's own resolver says ``errno``. Hosts that were looked up."""
    asked: list[str] = []
    known = socket.getaddrinfo

    def look_up(host: object, *how: object, **more: object) -> object:
        if host != "nosuchhost.invalid":
            return known(host, *how, **more)  # type: ignore[call-overload]
        asked.append(str(host))
        raise socket.gaierror(errno, "no")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    world.proxy.fault("/http/nosuchhost.invalid/a.tar", *[Refuse(503, "no such host", retryable=False)] * 10)
    return asked


@pytest.mark.parametrize("errno", [socket.EAI_NONAME, socket.EAI_NODATA])
def test_a_host_that_does_not_exist_is_final(world: World, errno: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the sidecar is asked again, nor the resolver, nor curl, which would look for a minute."""
    asked = named(world, errno, monkeypatch)
    with pytest.raises(ShardReadError, match=r"host name does not exist.*before that the sidecar said: .*no such host"):
        world.open(PATIENT, text="http://nosuchhost.invalid/a.tar", own=pytest.fail)
    assert (len(asked), len(world.proxy.requests)) == (1, 1)


def test_a_resolver_in_trouble_is_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that it does not know now: that is not its last word."""
    asked = named(world, socket.EAI_AGAIN, monkeypatch)
    assert world.read(QUICK, text="http://nosuchhost.invalid/a.tar", own=own(BODY)) == BODY
    assert len(asked) > 1


def test_a_range_of_a_host_that_does_not_exist_is_final(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read through the sidecar only."""
    named(world, socket.EAI_NONAME, monkeypatch)
    source = parse_source("http://nosuchhost.invalid/a.tar")
    assert source is not None
    with pytest.raises(ShardReadError, match="no such host"):
        read_range(source, 0, 10, '"a"', PATIENT)
    assert len(world.proxy.requests) == 1


def test_an_outage_is_asked_about_no_longer_than_was_said(world: World) -> None:
    """The sidecar for ``resume_s``, the origin itself once; curl would try for another minute."""
    world.proxy.fault(world.target, *[Refuse(503, "the origin answered 503")] * 1000)
    world.origin.fault("/data/x.tar", *[Refuse(503)] * 1000)
    with pytest.raises(ShardReadError, match=r"the origin answered 503; .*before that the sidecar said: .*the origin answered 503"):
        world.open(QUICK, own=pytest.fail)
    assert world.direct() == [""]


@pytest.mark.parametrize("text", ["", "s3://bucket/x.tar"], ids=["another way", "no other way"])
def test_silence_of_a_sidecar_that_turns_is_its_origins(world: World, text: str) -> None:
    """In the error, which has the sidecar's own words for it, and in what the wait is booked for."""
    gate, target = threading.Event(), "/s3/bucket/x.tar" if text else world.target
    world.proxy.put(target, BODY)
    world.proxy.fault(target, *[Silent(gate)] * 1000)
    world.origin.fault("/data/x.tar", *[Refuse(503)] * 1000)
    row = {"reader": READER, "waited_s": 1.0, "waiting_for": "http://o: the origin answered 503; it is asked again"}
    world.proxy.put("/v1/status", json.dumps({"readers": [row]}).encode())
    before = list(here().waited)
    try:
        with pytest.raises(ShardReadError, match="the origin answered 503; it is asked again"):
            world.open(replace(QUICK, look_s=0.05, silence_s=0.2, patience_s=0.5), text=text)
    finally:
        gate.set()
    waited = [after - at for after, at in zip(here().waited, before, strict=True)]
    assert waited[ORIGIN] > 5e8
    assert waited[PROXY] == 0


def test_other_sources_start_again(world: World) -> None:
    """What is no http source goes on webdataset's own way; the delivered part is skipped and compared."""
    text = "pipe:aws s3 cp s3://bucket/x.tar -"
    world.dies("/s3/bucket/x.tar")
    asked: list[str] = []
    assert world.read(QUICK, text=text, own=lambda command: asked.append(command) or io.BytesIO(BODY)) == BODY
    assert asked == [text]
    assert counters()["resumed_direct"] == 1


def test_short_pipe_is_no_end(world: World) -> None:
    """webdataset's own way is held to the length that is known: `|| true` hides nothing."""
    world.dies("/s3/bucket/x.tar")
    with (
        world.open(QUICK, text="pipe:aws s3 cp s3://bucket/x.tar -", own=own(BODY[:-1])) as stream,
        pytest.raises(ShardReadError, match="999999"),
    ):
        stream.read()


def test_bare_s3_has_no_other_way(world: World) -> None:
    """Without sidecar and without an opener of webdataset's, the error says so."""
    world.proxy.stop()
    with pytest.raises(ProxyUnreachable, match=r"s3://bucket/x\.tar.*no opener of its own for s3"):
        world.open(QUICK, text="s3://bucket/x.tar")
    assert counters()["failed"] == 1


def test_failed_command_keeps_its_secret(world: World) -> None:
    """An error of webdataset's own opener is told without the command's text."""

    def fail(text: str) -> object:
        raise OSError("(('tool --token secret-2',), {}): exit 22 (read)")

    world.proxy.stop()
    with pytest.raises(ShardReadError, match="exit code 22") as caught:
        world.open(QUICK, text="pipe:aws s3 cp s3://bucket/x.tar -", own=fail)
    assert "secret-2" not in f"{caught.value!s}{caught.value.__cause__}"


def test_a_failure_tells_what_was_tried_before(world: World) -> None:
    """The exit code of the last way's command alone would not say what the sidecar knew."""

    def fail(text: str) -> object:
        raise OSError("(('tool',), {}): exit 6 (read)")

    world.proxy.fault("/s3/bucket/x.tar", *[Refuse(503, "no such host")] * 1000)
    with pytest.raises(ShardReadError, match=r"exit code 6 \(before that the sidecar said: .*no such host") as caught:
        world.open(QUICK, text="pipe:aws s3 cp s3://bucket/x.tar -", own=fail)
    assert caught.value.args == (str(caught.value),)


# The shard changed


def test_changed_at_the_sidecar(world: World) -> None:
    """Another version after a cut is an error, never a mix."""
    world.proxy.fault(world.target, Cut(CUT, lambda: world.proxy.put(world.target, ramp(1_000_000, seed=1))))
    with world.open() as stream, pytest.raises(ShardChanged):
        stream.read()
    assert counters()["changed"] == 1


def test_the_same_bytes_under_another_name(world: World) -> None:
    """What rotted on the sidecar's disk gets another ETag when it is fetched anew: compared with what came, it is gone on with."""
    world.proxy.fault(world.target, Cut(CUT, lambda: world.proxy.put(world.target, BODY, etag='"renamed"')))
    assert world.read() == BODY


def renamed(world: World, cut_again: int) -> None:
    """Cut once, then refused for its ETag, then cut in the answer from byte 0."""
    rename = Cut(CUT, lambda: world.proxy.put(world.target, BODY, etag='"renamed"'))
    world.proxy.fault(world.target, rename, Cut(0), Cut(cut_again))  # the second is what the refusal takes


def test_what_was_compared_is_gone_on_with_by_its_new_name(world: World) -> None:
    """Once the bytes of another ETag are known to be the same, a later break asks for the rest of that version, and not from byte 0."""
    renamed(world, cut_again=CUT + 200_000)
    assert world.read() == BODY
    assert len(world.proxy.requests) == 4
    last = world.proxy.requests[-1].headers
    assert last["If-Match"] == '"renamed"'
    assert CUT < int(last["Range"].removeprefix("bytes=").removesuffix("-")) <= CUT + 200_000


def test_a_break_before_the_comparison_is_compared_from_the_start_again(world: World) -> None:
    """Nothing of the new name has been delivered yet."""
    renamed(world, cut_again=CUT // 2)
    assert world.read() == BODY
    assert len(world.proxy.requests) == 4
    assert "If-Match" not in world.proxy.requests[-1].headers


@pytest.mark.parametrize("honours", [True, False])
def test_changed_at_the_origin(world: World, honours: bool) -> None:
    """Another version at the origin is seen, whether it honours If-Match or ignores it."""
    world.origin.put("/data/x.tar", ramp(1_000_000, seed=1), honours_if_match=honours)
    world.dies(world.target)
    with world.open(QUICK) as stream, pytest.raises(ShardChanged):
        stream.read()


@pytest.mark.parametrize("cuts", [1, 2])
def test_the_same_bytes_from_another_server_of_the_origin(world: World, cuts: int) -> None:
    """One that gives them another ETag, as servers behind one name may: compared with what came, they are gone on with."""
    answers = [Cut(CUT + 1000, lambda: world.origin.put("/data/x.tar", BODY, etag='"third"')) for _ in range(cuts - 1)]
    world.origin.put("/data/x.tar", BODY, etag='"second"')
    world.origin.fault("/data/x.tar", Cut(0), *answers)  # the first is what the refusal takes
    world.dies(world.target)
    assert world.read(QUICK) == BODY


@pytest.mark.parametrize(
    "body", [ramp(1_000_000, seed=1), BODY[: CUT - 1], BODY + b"x", b"\0" + BODY[1:]], ids=["other", "shorter", "longer", "first byte"]
)
def test_changed_elsewhere(world: World, body: bytes) -> None:
    """webdataset's own way must deliver what was delivered, and no more than was promised."""
    world.dies("/s3/bucket/x.tar")
    with world.open(QUICK, text="pipe:aws s3 cp s3://bucket/x.tar -", own=own(body)) as stream, pytest.raises(ShardChanged):
        stream.read()


def test_changed_length_without_ranges(world: World) -> None:
    """Without ranges the length already tells another version."""
    world.origin.put("/data/x.tar", BODY + b"x", ranges=False, honours_if_match=False)
    world.dies(world.target)
    with world.open(QUICK) as stream, pytest.raises(ShardChanged, match="1000001 bytes long now, was 1000000"):
        stream.read()


# Refusals


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405])
def test_refusal_is_final(world: World, status: int) -> None:
    """A 4xx is raised at once, with the sidecar's own words and without asking the origin."""
    world.proxy.fault(world.target, Refuse(status, "use --allow-origin"))
    with pytest.raises(ShardReadError, match=r"use --allow-origin.*HTTP") as caught:
        world.open()
    assert caught.value.status == status
    assert world.origin.requests == []


def test_origin_refusal_is_final(world: World) -> None:
    """Without the sidecar the origin's 404 is final too."""
    world.proxy.stop()
    world.origin.shown.clear()
    with pytest.raises(ShardReadError, match="404"):
        world.open(QUICK)


def test_file_outside_the_roots(world: World, tmp_path: object) -> None:
    """A file the sidecar may not serve is read as `cat` would, without a warning or a count of loss."""
    told: list[str] = []
    source = parse_source(f"pipe:cat {tmp_path}/x.tar")
    assert source is not None
    world.proxy.fault(f"/file{tmp_path}/x.tar", Refuse(403, "outside"))
    with ShardStream(source, READER, limits=QUICK, own_open=own(BODY), refused=told.append) as stream:
        assert stream.read() == BODY
    assert told == ["file"]
    assert (counters()["fallback_total"], DEAD.known()) == (0, False)


def test_query_is_not_shown(world: World) -> None:
    """A signature in the URL is in no message."""
    with pytest.raises(ShardReadError) as caught:
        world.open(text=f"{world.url}?X-Amz-Signature=secret-1")
    assert "secret-1" not in str(caught.value).split("no shard")[0]


# Odd origins, asked directly


def test_close_delimited_tar(world: World) -> None:
    """A body without framing ends where the tar archive's two zero blocks say so."""
    world.proxy.stop()
    body = BODY + bytes(1024)
    world.origin.put("/data/x.tar", body, framing="close")
    with world.open(QUICK) as stream:
        assert stream.read() == body


def test_close_delimited_cut(world: World) -> None:
    """A body without framing and without its zero blocks was cut."""
    world.proxy.stop()
    world.origin.put("/data/x.tar", BODY, framing="close", ranges=False)
    with world.open(QUICK) as stream, pytest.raises(ShardReadError, match="before the tar archive's end"):
        stream.read()


def test_redirect_keeps_credentials_home(world: World) -> None:
    """A redirect to another host is followed without what proves the asker, with what asks for the rest."""
    world.dies(world.target)
    with FakeServer().running() as elsewhere:
        elsewhere.put("/y.tar", BODY)
        world.origin.fault("/data/x.tar", Refuse(302, headers=(("Location", f"{elsewhere.url}/y.tar"),)))
        with world.open(QUICK, text=f"pipe:curl -L -H 'Authorization: Bearer a' {world.url}") as stream:
            assert stream.read() == BODY
        (request,) = elsewhere.requests
    assert world.origin.requests[0].headers["Authorization"] == "Bearer a"
    assert "Authorization" not in request.headers
    assert request.headers["Range"] == f"bytes={CUT}-"


def test_loopback_is_reached_without_the_system_proxy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """http_proxy does not catch a loopback origin."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_ports(1)[0]}")
    world.proxy.stop()
    assert world.read(QUICK) == BODY


# Processes


def test_fork_in_the_middle(world: World) -> None:
    """A child that inherits a half-read stream goes on by itself; the parent's bytes stay the parent's."""
    world.proxy.put(world.target, body := ramp(3_000_000))
    stream = world.open()
    head = stream.read(10_000)
    inbox, outbox = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(outbox, "wb") as out:
            out.write(stream.read())
        os._exit(0)
    os.close(outbox)
    with os.fdopen(inbox, "rb") as found:
        assert head + found.read() == body
    os.waitpid(child, 0)
    assert head + stream.read() == body
    stream.close()
