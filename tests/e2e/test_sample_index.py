"""Sample indexes of a real sidecar: made, counted, read by number and by ranges, and the same samples as webdataset's."""

from __future__ import annotations

import json
import os
import pickle
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.indexes import samples_of
from support.sidecar import Sidecar, forebay, running, small_segments, wait_until
from support.tarmaking import written

from forebay_loader.base.counters import counters
from forebay_loader.base.errors import ShardChanged
from forebay_loader.samples import tar
from forebay_loader.samples.index_client import counts_of, index_of, source_in
from forebay_loader.samples.index_samples import indexed_samples
from forebay_loader.samples.indexed_shard import IndexedShard
from forebay_loader.samples.indexed_shards import IndexedShards
from forebay_loader.stream.shard_descriptor import Descriptor
from forebay_loader.stream.webdataset_openers import open_source
from forebay_proxy.cli.sidecars.status import status_rows

pytestmark = pytest.mark.usefixtures("fresh_loader")

SEGMENT = 1 << 16
SAMPLES = 60


@pytest.fixture
def shards(place: Path) -> Path:
    """Four tars of each format, of some 400 kB; the last is compressed."""
    found = place / "shards"
    found.mkdir()
    chance = random.Random(7)
    for number in range(4):
        entries: list[tuple[str, Any]] = []
        for sample in range(SAMPLES + number):
            key = f"d/{number}-{sample:03}"
            entries += [
                (f"{key}.jpg", chance.randbytes(5000)),
                (f"{key}.seg.png", b"" if sample % 7 else b"x"),
                (f"{key}.txt", key.encode()),
            ]
        kind = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT)[number]
        content = written([("__meta__", b"x"), ("d", None), *entries, ("README", b"y")], kind)
        (found / f"{number}.tar").write_bytes(content)
    (found / "gz.tar").write_bytes(b"\x1f\x8b\x08" + chance.randbytes(9000))
    return found


@pytest.fixture
def sidecar(place: Path, shards: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sidecar]:
    with running(
        place, "--cache-size", "100MB", "--file-root", str(shards), "--socket", str(place / "s"), program=small_segments(SEGMENT)
    ) as found:
        monkeypatch.setenv("FOREBAY_SOCKET", str(place / "s"))
        yield found


def urls(shards: Path, *numbers: int) -> list[str]:
    return [f"file://{shards}/{number}.tar" for number in numbers]


def fetched(sidecar: Sidecar, shards: Path, *numbers: int) -> None:
    for number in numbers:
        sidecar.ask(f"/file{shards}/{number}.tar")
    wait_until(lambda: set(urls(shards, *numbers)) <= {name for name, shard in sidecar.shards().items() if shard["complete"]})


def by_webdataset(url: str) -> list[dict[str, Any]]:
    tariterators = pytest.importorskip("webdataset.tariterators")
    with open(url.removeprefix("file://"), "rb") as stream:
        return [sample for sample in tariterators.group_by_keys(tariterators.tar_file_expander([{"url": url, "stream": stream}])) if sample]


@pytest.mark.webdataset
def test_random_access_gives_webdatasets_samples(sidecar: Sidecar, shards: Path) -> None:
    """Mapped, every sample of every kind of tar, by number, from behind, and in a range."""
    fetched(sidecar, shards, 0, 1, 2, 3)
    for url in urls(shards, 0, 1, 2, 3):
        expected = by_webdataset(url)
        with IndexedShard(url) as shard:
            assert shard.mapped
            assert (len(shard), list(shard.samples())) == (len(expected), expected)
            assert [shard[number] for number in (0, 17, -1)] == [expected[number] for number in (0, 17, -1)]
            assert list(shard.samples(10, 13)) == expected[10:13]
            assert (list(shard.samples(-20)), list(shard.samples(3, -2))) == (expected[-20:], expected[3:-2])
            assert shard.key(5) == expected[5]["__key__"]
            for number in (len(shard), -len(shard) - 1):
                with pytest.raises(IndexError):
                    shard[number]


def test_what_is_read_is_what_is_counted(sidecar: Sidecar, shards: Path) -> None:
    """Of two samples their bytes, of a range what lies in it, of a whole pass the shard once: not the shard each time that it is opened."""
    fetched(sidecar, shards, 0)
    before, (url,) = sidecar.status()["bytes"], urls(shards, 0)
    length = (shards / "0.tar").stat().st_size
    for _ in range(3):  # as workers do
        with IndexedShard(url) as shard:
            assert shard.mapped
            read = sum(len(data) for number in (3, 40) for name, data in shard[number].items() if not name.startswith("__"))
    assert counters()["bytes_proxy"] == 3 * read
    with IndexedShard(url) as shard:
        assert len(list(shard.samples())) == SAMPLES
    assert 0.7 * length < counters()["bytes_proxy"] - 3 * read <= length
    after = sidecar.status()["bytes"]
    assert (after["sent"] - before["sent"], after["opened"]) == (0, 4 * length)
    assert f"{4 * length / 1e6:.1f} MB opened to read samples of it" in dict(status_rows(sidecar.status()))["read"]


def test_many_shards_are_one_sequence(sidecar: Sidecar, shards: Path) -> None:
    """It has a length, slices, and pickles."""
    fetched(sidecar, shards, 0, 1, 2)
    expected = [sample for url in urls(shards, 0, 1, 2) for sample in by_webdataset(url)]
    samples = IndexedShards(f"file://{shards}/{{0..2}}.tar")
    assert (len(samples), samples[SAMPLES], samples[-1]) == (3 * SAMPLES + 3, expected[SAMPLES], expected[-1])
    assert list(samples) == expected
    again = pickle.loads(pickle.dumps(samples))
    assert again[50:70] == expected[50:70]
    joined = IndexedShards(f"file://{shards}/0.tar::file://{shards}/{{1..2}}.tar")
    assert joined.urls == samples.urls
    samples.close()
    again.close()


def test_counts_ask_for_nothing(sidecar: Sidecar, shards: Path) -> None:
    """All known: the numbers. One not known: none, and no byte of it is fetched."""
    fetched(sidecar, shards, 0, 1)
    assert counts_of(urls(shards, 1, 0, 1)) == [SAMPLES + 1, SAMPLES, SAMPLES + 1]
    assert counts_of(urls(shards, 0, 3)) is None
    assert f"file://{shards}/3.tar" not in sidecar.shards()
    assert counts_of([f"file://{shards}/absent.tar"]) is None


def test_an_index_comes_once(sidecar: Sidecar, shards: Path) -> None:
    """A process keeps it by version; the sidecar is asked again only for a version that it does not know."""
    fetched(sidecar, shards, 0)
    (url,) = urls(shards, 0)
    source = source_in(url)
    assert source is not None
    first = index_of(source)
    assert first is not None
    before = sidecar.status()["requests"]
    assert index_of(source, first.etag) is first
    assert sidecar.status()["requests"] == before
    assert index_of(source) is first
    assert index_of(source, '"other"') is None


def test_only_wanted_ranges_of_a_cold_shard(sidecar: Sidecar, shards: Path) -> None:
    """The segments have left, the index has not: the texts of a few samples cost their own segments and no more."""
    fetched(sidecar, shards, 1)
    (url,) = urls(shards, 1)
    expected = by_webdataset(url)
    assert counts_of([url]) == [SAMPLES + 1]
    sidecar.ask("/v1/evict", b'{"all": true}')
    wait_until(lambda: not sidecar.shards())
    with IndexedShard(url, select_files=lambda name: name.endswith(".txt")) as shard:
        assert not shard.mapped
        assert [shard[number] for number in (40, 41)] == [
            {name: value for name, value in expected[number].items() if name in ("__key__", "__url__", "txt")} for number in (40, 41)
        ]
    wait_until(lambda: not sidecar.status()["cache"]["in_flight"])  # what was read may not be stored yet
    here = sidecar.shards()[url]
    assert 0 < here["stored_bytes"] <= 2 * SEGMENT


def test_a_range_of_a_shard_that_changed_is_refused(sidecar: Sidecar, shards: Path) -> None:
    """Ranges name the version of the index."""
    fetched(sidecar, shards, 0)
    (url,) = urls(shards, 0)
    shard = IndexedShard(url, select_files=lambda name: True)
    sidecar.ask("/v1/evict", b'{"all": true}')
    (shards / "0.tar").write_bytes((shards / "1.tar").read_bytes())
    with pytest.raises(ShardChanged):
        shard[3]


def test_a_shard_that_changed_is_refused_when_it_is_opened_again(sidecar: Sidecar, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with as many samples as before; by a job that is told of the new one."""
    fetched(sidecar, shards, 0)
    (url,) = urls(shards, 0)
    sequence = IndexedShards([url])
    sequence.close()
    (shards / "0.tar").write_bytes((shards / "1.tar").read_bytes())
    monkeypatch.setenv("FOREBAY_JOB", "another")
    source = source_in(url)
    assert source is not None
    with open_source(source) as stream:
        stream.read()
    with pytest.raises(ShardChanged, match="replaced since"):
        sequence[0]


def test_a_part_of_an_open_shard_is_found_by_its_index(sidecar: Sidecar, shards: Path) -> None:
    """Mapped: from any sample on. A stream has none."""
    (url,) = urls(shards, 2)
    source = source_in(url)
    assert source is not None
    with open_source(source) as stream:
        assert indexed_samples({"url": url, "stream": stream}, 5, 9) is None
        stream.read()
    fetched(sidecar, shards, 2)
    with open_source(source) as stream:
        assert isinstance(stream, Descriptor)
        found = indexed_samples({"url": url, "stream": stream}, 5, 9)
        assert found is not None
        assert list(found) == by_webdataset(url)[5:9]


@pytest.mark.webdataset
def test_a_mapped_shard_is_read_by_its_index(sidecar: Sidecar, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is made: the same samples, no header is looked at, and a shard without one is asked about once, which is no error."""
    errors = sidecar.status()["errors"]
    fetched(sidecar, shards, 2)
    (url,) = urls(shards, 2)
    source = source_in(url)
    assert source is not None
    expected = by_webdataset(url)
    assert index_of(source) is not None
    monkeypatch.setattr(tar, "INDEX_FROM_BYTES", 0)
    with monkeypatch.context() as patching:
        patching.setattr(tar.Samples, "_walk", lambda *_: pytest.fail("walked"))
        assert list(samples_of([{"url": url, "stream": open_source(source)}])) == expected
    (shards / "4.tar").write_bytes(written([("a.jpg", b"x"), ("a.jpg", b"y")]))
    fetched(sidecar, shards, 4)
    other = source_in(urls(shards, 4)[0])
    assert other is not None
    for _ in range(3):
        with pytest.raises(ValueError, match="duplicate"):
            list(samples_of([{"url": other.text, "stream": open_source(other)}]))
    assert sidecar.metric("forebay_requests_total", code="404") + sidecar.metric("forebay_requests_total", code="409") == 1
    assert sidecar.status()["errors"] == errors


def test_the_verb_counts_a_set(sidecar: Sidecar, shards: Path, place: Path) -> None:
    """Shards are fetched for it once, sizes.json is as OpenCLIP reads it; the second time nothing is fetched."""
    done = forebay(place, "index", f"file://{shards}/{{0..3}}.tar", "--url", sidecar.url)
    total = 4 * SAMPLES + 6
    assert (done.returncode, done.stdout) == (0, f"{total} samples in 4 shards ({SAMPLES} to {SAMPLES + 3} each); sizes.json written\n")
    sizes = json.loads((place / "sizes.json").read_text())
    assert sum(int(sizes[os.path.basename(url)]) for url in urls(shards, 0, 1, 2, 3)) == total
    sidecar.ask("/v1/evict", b'{"all": true}')
    wait_until(lambda: not sidecar.shards())
    again = forebay(place, "index", f"file://{shards}/{{0..3}}.tar", "--url", sidecar.url, "--json", "--sizes", "")
    events = [json.loads(line) for line in again.stdout.splitlines()]
    assert [event["samples"] for event in events] == [SAMPLES, SAMPLES + 1, SAMPLES + 2, SAMPLES + 3, total]
    assert events[-1] == {"event": "end", "shards": 4, "samples": total, "without": 0, "amiss": 0, "sizes": None}
    assert not sidecar.shards()
    assert sidecar.metric("forebay_sample_indexes_total", result="built") == 4


def test_the_verb_names_what_has_none(sidecar: Sidecar, shards: Path, place: Path) -> None:
    """Exit code 1, no half sizes.json; two shards of one name, or no place for the sizes, end it before anything is fetched."""
    done = forebay(place, "index", *urls(shards, 0), f"file://{shards}/gz.tar", f"file://{shards}/absent.tar", "--url", sidecar.url)
    assert (done.returncode, done.stdout) == (1, f"{SAMPLES} samples in 1 shard ({SAMPLES} to {SAMPLES} each)\n")
    assert "gz.tar: it has no sample index: it is not a plain tar (gz)" in done.stderr
    assert "absent.tar" in done.stderr
    assert "2 of 3 shards have no index" in done.stderr
    assert not (place / "sizes.json").exists()
    done = forebay(place, "index", "s3://a/00.tar", "s3://b/00.tar", "--url", sidecar.url)
    assert done.returncode == 2
    assert "two shards have the name 00.tar" in done.stderr
    for sizes, cause in ((place / "none" / "s.json", "no folder you may write to"), (place, "it is a folder")):
        done = forebay(place, "index", *urls(shards, 0), "--url", sidecar.url, "--sizes", str(sizes))
        assert (done.returncode, done.stdout) == (2, "")
        assert cause in done.stderr
