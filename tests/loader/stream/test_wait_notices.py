"""What the sidecar says of a long wait for its answer. That it is told: e2e/test_waiting_told.py."""

from __future__ import annotations

import json

import pytest
from support.fake_proxy import FakeServer

from forebay_loader.stream.wait_notices import cause_of

READER = "job/0/0/1.1"
UNKNOWN = "the sidecar has not answered, and does not say why (see its log)"


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
