"""Frames as they come: by number from the opening on, forwards only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy
import pytest
from support.clips import frame_number, rendered

from forebay_loader.videos.errors import UnsupportedVideo, VideoError, VideoTimeout
from forebay_loader.videos.sources.choice import source_of
from forebay_loader.videos.sources.live_source import CameraSource, LiveSource

FRAMES = 48


def sound_alone() -> Iterator[bytes]:
    """Packets of sound, on the stream that the clip has them on."""
    data = rendered(container="mpegts", frames=1, audio="mp2", audio_s=2.0)
    yield from (data[at : at + 188] for at in range(0, len(data), 188) if int.from_bytes(data[at + 1 : at + 3], "big") & 0x1FFF == 0x101)


# What comes after the pictures, again and again; each reaches another place in FFmpeg's demuxer.
GOES_ON: dict[str, Callable[[], Iterable[bytes]]] = {
    "/falls-silent": lambda: (),
    "/dribbles": lambda: [b"\x47\x1f\xff\x10" + b"\xff" * 184],  # a packet of nothing, as broadcasts are filled up with
    "/sound-alone": sound_alone,
}


class Stream(BaseHTTPRequestHandler):
    """A stream without a length, as a live one: MPEG-TS."""

    protocol_version = "HTTP/1.1"

    held = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.path == "/silent":
            self.held.wait(60)
            return
        body = rendered(container="mpegts", frames=FRAMES, audio="mp2")
        path, _, late = self.path.partition("?")
        if path in GOES_ON:
            self._chunk(late.encode() or body)
            while not self.held.wait(0.02):
                for part in GOES_ON[path]():
                    self._chunk(part)
            return
        self._chunk(body)
        self._chunk(b"")

    def _chunk(self, part: bytes) -> None:
        with suppress(OSError):  # nobody listens any more
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def host() -> Iterator[str]:
    Stream.held.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stream)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    Stream.held.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_live_stream_over_http(host: str) -> None:
    """Frames in their order; what lies between is passed over, and how many will come nobody knows."""
    with source_of(f"live+http://{host}/a.ts") as source:
        info = source.open()
        assert (info.frames, info.width, info.height) == (0, 128, 96)
        assert [frame_number(picture) for picture in source.frames([0, 1, 1, 5])] == [0, 1, 1, 5]
        assert frame_number(source.frame(20)) == 20


def test_there_is_no_way_back(host: str) -> None:
    """Nor behind the end, however often it is asked for."""
    with source_of(f"live+http://{host}/a.ts") as source:
        source.frame(5)
        with pytest.raises(IndexError, match=r"frame 2 .* has passed"):
            source.frame(2)
        for _ in range(2):
            with pytest.raises(IndexError, match="ended after 48 frames"):
                source.frame(100)


def test_a_stream_that_is_not_there() -> None:
    """Named without its account."""
    with pytest.raises(UnsupportedVideo, match=r"^rtsp://127\.0\.0\.1:9/x: cannot be opened"):
        LiveSource("rtsp://me:secret@127.0.0.1:9/x?secret").open()


def test_a_silent_stream_has_its_time(host: str) -> None:
    """A worker does not wait for ever."""
    with pytest.raises(VideoTimeout, match=r"longer than 0\.3 s"):
        source_of(f"live+http://{host}/silent", time_limit_s=0.3).open()


@pytest.mark.parametrize("path", GOES_ON)
def test_a_stream_that_goes_on_without_a_picture(host: str, path: str) -> None:
    """Whatever comes in place of frames, what has come is given, and then the time is over."""
    with source_of(f"live+http://{host}{path}", options={"probesize": "5000"}, time_limit_s=1.0) as source:
        assert frame_number(source.frame(10)) == 10
        began_s = time.monotonic()
        with pytest.raises(VideoTimeout, match=rf"{path}: took longer than 1 s"):
            source.frame(FRAMES + 10)
        assert 0.9 < time.monotonic() - began_s < 10


@pytest.mark.parametrize("path", GOES_ON)
def test_opening_what_has_no_picture(host: str, path: str) -> None:
    """It is looked for as long as a call may take, not as long as bytes come."""
    with source_of(f"live+http://{host}{path}?late", time_limit_s=1.0) as source:
        began_s = time.monotonic()
        with pytest.raises(VideoError, match=f"{path}: (took longer than 1 s|there is no video in it)"):
            source.open()
        assert time.monotonic() - began_s < 10


def test_size_and_sound(host: str) -> None:
    """As of any source; of sound there is none."""
    with source_of(f"live+http://{host}/a.ts", size=(48, 64)) as source:
        assert source.frames([0, 2]).shape == (2, 48, 64, 3)
        sound, rate_hz = source.audio(0.0, 1.0)
    assert (sound.shape, rate_hz, sound.dtype) == ((0, 0), 0, numpy.float32)


def test_frames_of_a_camera() -> None:
    """As they come, of the size that it has."""
    with source_of("lavfi://testsrc=size=64x48:rate=25") as source:
        assert (source.open().width, source.open().height) == (64, 48)
        found = source.frames([0, 1, 30])
    assert found.shape == (3, 48, 64, 3)
    assert (found[0] != found[2]).any()


def test_a_camera_that_is_not_there() -> None:
    """Named by its device."""
    with pytest.raises(UnsupportedVideo, match=r"^/dev/video97: cannot be opened"):
        CameraSource("/dev/video97").open()


def test_options_are_the_devices() -> None:
    """FFmpeg's synthetic one shows what its option says, whatever its name says."""
    with CameraSource("lavfi://color=size=32x32", options={"graph": "testsrc=size=64x48:rate=25"}) as source:
        assert source.frame(0).shape == (48, 64, 3)
