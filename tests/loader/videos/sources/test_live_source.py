"""Frames as they come: by number from the opening on, forwards only."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy
import pytest
from support.clips import frame_number, rendered

from forebay_loader.videos.errors import UnsupportedVideo, VideoTimeout
from forebay_loader.videos.sources.choice import source_of
from forebay_loader.videos.sources.live_source import LiveSource


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
        body = rendered(container="mpegts", frames=48)
        self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))

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
    """Nor behind the end."""
    with source_of(f"live+http://{host}/a.ts") as source:
        source.frame(5)
        with pytest.raises(IndexError, match=r"frame 2 .* has passed"):
            source.frame(2)
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


def test_it_travels_closed(host: str) -> None:
    """Another process has its own, from its own begin."""
    with source_of(f"live+http://{host}/a.ts") as source:
        source.frame(30)
        with pickle.loads(pickle.dumps(source)) as other:
            assert frame_number(other.frame(0)) == 0


def test_size_and_sound(host: str) -> None:
    """As of any source; of sound there is none."""
    with source_of(f"live+http://{host}/a.ts", size=(48, 64)) as source:
        assert source.frames([0, 2]).shape == (2, 48, 64, 3)
        sound, rate_hz = source.audio(0.0, 1.0)
    assert (sound.shape, rate_hz, sound.dtype) == ((0, 0), 0, numpy.float32)
