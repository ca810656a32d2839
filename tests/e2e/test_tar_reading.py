"""Samples through a real sidecar, first as streams while shards are fetched, then mapped: webdataset's own, both times."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.sidecar import Sidecar, running, wait_until
from support.tarmaking import written
from webdataset import tariterators

import forebay_loader as fb
from forebay_loader.base.counters import COUNTS
from forebay_loader.transport.fd_endpoint import DOORS

pytestmark = pytest.mark.webdataset

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


@pytest.fixture
def shards(place: Path) -> list[Path]:
    """One shard of each format, with long names, a large member and webdataset's own kind of time stamp; and one without its end."""
    folder = place / "shards"
    folder.mkdir()
    found = []
    for number, form in enumerate(FORMATS):
        files = [
            (f"{'d' * 90}/{number}-{n:03d}.{suffix}", os.urandom(size)) for n in range(90) for suffix, size in (("Bin", 20_000), ("txt", 9))
        ]
        found.append(folder / f"{number}.tar")
        found[-1].write_bytes(written([*files, ("large.x", os.urandom(3 << 20))], form, mtime=1700000000.25))
    return found


@pytest.fixture
def sidecar(place: Path, shards: list[Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Sidecar]:
    flags = ["--cache-size", "1GB", "--file-root", str(place / "shards"), "--socket", str(place / "s")]
    COUNTS.reset()
    DOORS.forget()
    with running(place, *flags) as sidecar:
        monkeypatch.setenv("FOREBAY_URL", sidecar.url)
        yield sidecar
    DOORS.forget()


def read(shards: list[Path], **options: Any) -> list[dict[str, Any]]:
    return list(fb.tarfile_to_samples(**options)([{"url": f"pipe:cat {path}"} for path in shards]))


def complete(sidecar: Sidecar, shards: list[Path]) -> bool:
    return {f"file://{path}" for path in shards} <= {name for name, shard in sidecar.shards().items() if shard["complete"]}


def test_streamed_and_mapped_samples_are_webdatasets_own(sidecar: Sidecar, shards: list[Path]) -> None:
    """Cold over HTTP, warm by descriptor: the same dictionaries, key by key and in order, as webdataset reads from the files."""
    sources = [{"url": f"pipe:cat {path}", "stream": path.open("rb")} for path in shards]
    expected = list(tariterators.group_by_keys(tariterators.tar_file_expander(sources)))
    for source in sources:
        source["stream"].close()  # type: ignore[attr-defined]
    assert read(shards) == expected
    wait_until(lambda: complete(sidecar, shards))
    assert fb.counters()["opened_descriptor"] < len(shards)
    before = fb.counters()["opened_descriptor"]
    again = read(shards)
    assert fb.counters()["opened_descriptor"] == before + len(shards)
    assert [list(sample.items()) for sample in again] == [list(sample.items()) for sample in expected]


def test_a_shard_without_its_end_is_an_error_until_it_is_allowed(sidecar: Sidecar, shards: list[Path]) -> None:
    """Every byte came and the length agrees: ``warn`` takes it, streamed and mapped, with all samples."""
    path = shards[0]
    path.write_bytes(path.read_bytes().rstrip(b"\0") + bytes(512))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 512 * 512])
    for _ in ("streamed", "mapped"):
        with pytest.raises(fb.TarFault, match="end"):
            read([path])
        assert len(read([path], on_tar_fault="warn")) == 91
        wait_until(lambda: complete(sidecar, [path]))
