"""A long wait for the sidecar's answer is told once, with what the sidecar says of it; a short one is not."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator

import pytest
from support.fake_proxy import FakeServer

from forebay_loader.stream import wait_notices
from forebay_loader.stream.wait_notices import SAID, cause_of, say_wait
from forebay_loader.transport import hung_sidecar

Pair = tuple[socket.socket, socket.socket]
READER = "job/0/0/1.1"
UNKNOWN = "the sidecar has not answered, and does not say why (see its log)"


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    monkeypatch.setattr(hung_sidecar, "turns", lambda: True)
    return []


def noting(told: list[float]) -> Callable[[float, Callable[[], bool]], None]:
    return lambda seconds, over: told.append(seconds)


def test_a_long_wait_is_told(pair: Pair, told: list[float]) -> None:
    """Not before ``tell_s``, and after the question whether the sidecar turns."""
    hung_sidecar.look(pair[0], 0.01, 0.2, noting(told))
    assert len(told) == 1
    assert told[0] >= 0.2


def test_an_answer_in_between_is_not_told(pair: Pair, told: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """It came after ``look_s`` and before ``tell_s``."""
    monkeypatch.setattr(hung_sidecar, "turns", lambda: bool(pair[1].send(b"H")))
    hung_sidecar.look(pair[0], 0.01, 60.0, noting(told))
    assert not told


def test_the_cause_is_the_readers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all who wait; of two shards the one it has waited for longest. Whatever comes instead is no error."""
    with FakeServer().running() as sidecar:
        monkeypatch.setenv("FOREBAY_URL", f"http://127.0.0.1:{sidecar.port}")

        def rows(*found: tuple[str, float, str]) -> str:
            readers = [{"reader": reader, "waited_s": seconds, "waiting_for": cause} for reader, seconds, cause in found]
            sidecar.put("/v1/status", json.dumps({"readers": readers}).encode())
            return cause_of(READER)

        assert rows(("job/0/0/1.2", 9.0, "another"), (READER, 5.0, "mine"), (READER, 1.0, "later"), (READER, 8.0, "")) == "mine"
        assert rows(("job/0/0/1.2", 9.0, "another")) == UNKNOWN
        for content in (b"[]", b"{", b'{"readers": [3]}', b'{"readers": {"reader": 1}}', b"[" * 100_000):
            sidecar.put("/v1/status", content)
            assert cause_of(READER) == UNKNOWN
    assert cause_of(READER) == UNKNOWN  # nobody answers


def test_once_a_minute(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A process reads one shard after the other; an answer that came while the cause was asked for is no wait any more."""
    asked: list[str] = []
    monkeypatch.setattr(wait_notices, "cause_of", lambda reader: asked.append(reader) or "the cause")
    with caplog.at_level(logging.WARNING, "forebay_loader"):
        say_wait("a", READER, 5.0, lambda: True)
        assert not caplog.messages
        say_wait("b", READER, 5.0)
        say_wait("c", READER, 5.0)
        assert len(asked) == 2
        SAID.forget()
        say_wait("d", READER, 35.0)
    assert caplog.messages == ["shard b: waiting for 5 s; the cause", "shard d: waiting for 35 s; the cause"]
