"""Webdataset's own streams as the last way to a shard: what their command's end says."""

from __future__ import annotations

import pytest

from forebay_loader.base.errors import ShardReadError
from forebay_loader.stream import restarted_body
from forebay_loader.stream.restarted_body import Foreign

pytest.importorskip("webdataset")
from forebay_loader.stream.webdataset_openers import gopen_module  # it imports webdataset

pytestmark = pytest.mark.webdataset


def read(command: str) -> bytes:
    """All that webdataset's own pipe gives."""
    body = Foreign(gopen_module().gopen_pipe(f"pipe:{command}", "rb", 8192), "s3://bucket/a.tar")
    try:
        return b"".join(iter(lambda: body.read(1 << 16), b""))
    finally:
        body.close()


def test_a_command_that_fails_after_its_last_byte_is_no_whole_shard() -> None:
    """Webdataset looks at the command once when its output ends: one that has not ended by then passes for a success."""
    with pytest.raises(ShardReadError, match="its command ended with exit code 22"):
        read("printf abc; exec >&-; sleep 0.3; exit 22")


def test_a_command_that_ends_well_is_whole() -> None:
    """Also where its failure was waved through, as in most people's URLs."""
    assert read("printf abc; exec >&-; sleep 0.1") == b"abc"
    assert read("{ printf abc; false; } || true") == b"abc"


def test_a_command_that_stays_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it would have failed nobody knows; it is ended, since closing it would wait as well."""
    monkeypatch.setattr(restarted_body, "END_S", 0.2)
    with pytest.raises(ShardReadError, match="TimeoutExpired"):
        read("printf abc; exec >&-; exec sleep 600")
