"""A door behind which nobody turns: one silence, which HTTP does not wait out again."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.fake_proxy import FakeServer

from forebay_loader.stream.descriptor_request import open_descriptor
from forebay_loader.transport import fd_client, fd_endpoint, hung_sidecar
from forebay_loader.transport.hung_sidecar import HUNG
from forebay_proxy.wire.commands.sources import parse_source
from forebay_proxy.wire.protocol.fd import door_path

SOURCE = parse_source("s3://bucket/x.tar")


@pytest.fixture(autouse=True)
def short_silences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_FD")
    monkeypatch.setattr(fd_client, "LOOK_S", 0.1)
    monkeypatch.setattr(fd_endpoint, "STATUS_S", 0.1)
    monkeypatch.setattr(hung_sidecar, "TURNS_S", 0.1)


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A sidecar whose sockets let nobody in any more."""
    path = str(tmp_path / "s")
    with ExitStack() as held:
        for place in (path, door_path(path)):
            listening = held.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(place)
            listening.listen(0)
            waiting = held.enter_context(socket.socket(socket.AF_UNIX))
            waiting.connect(place)
        monkeypatch.setenv("FOREBAY_SOCKET", path)
        yield


@pytest.mark.usefixtures("full")
def test_a_door_that_lets_nobody_in_is_a_sidecar_that_hangs() -> None:
    """Known at once."""
    assert open_descriptor(SOURCE, "j/0/0/1.0") is None
    assert HUNG.known()


@pytest.mark.parametrize("is_turning", [False, True])
def test_a_door_that_only_its_sidecar_could_tell(proxy: FakeServer, is_turning: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By ``FOREBAY_URL`` alone. One that turns and does not say is no sidecar that hangs."""
    if is_turning:
        monkeypatch.setattr(hung_sidecar, "TURNS_S", 60.0)
    else:
        proxy.turning.clear()
    try:
        assert open_descriptor(SOURCE, "j/0/0/1.0") is None
        assert HUNG.known() is not is_turning
    finally:
        proxy.turning.set()
