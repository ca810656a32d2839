"""Very small to very large, 16 readers at a time, whole and by ranges, four kinds of origin: every byte right, each fetched once.

What decides is how many segments a shard has, 1 to 36, not how many bytes a segment has; so ordinarily all sizes are an eighth of the real
ones, the segments' and the cache's too. ``scripts/test --long`` has them as they are.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from support import nginx as servers
from support.lengths import ordinarily
from support.readers import Got, make_shard, many, read, shard_sizes, spans
from support.s3_servers import S3Server
from support.sidecar import FOREBAY, Sidecar, running, small_segments

from forebay_proxy.core.segments import SEGMENT_BYTES

READERS = 16
EIGHTHS = ordinarily(1, of=8, what="eighths of the bytes of very many shards")
HALVES = ordinarily(1, of=2, what="halves of very many shards")
SEGMENT = EIGHTHS * SEGMENT_BYTES // 8
MB = EIGHTHS * 125_000


def make_shards(directory: Path, sizes: Sequence[int]) -> list[Path]:
    directory.mkdir()
    return [make_shard(directory / f"{number:03d}.tar", size, number) for number, size in enumerate(sizes)]


def read_all(sidecar: Sidecar, files: Sequence[Path], url: Callable[[str], str]) -> None:
    """Each shard twice whole and by two random ranges, in random order."""
    rng, work = random.Random(3), []
    for file in files:
        whole = partial(read_one, sidecar.proxied(url(file.name)), file)
        work += [whole, whole, *(partial(whole, span) for span in spans(rng, file.stat().st_size, 2))]
    rng.shuffle(work)
    started = time.monotonic()
    answers = many(READERS, work)
    tell(answers, files, time.monotonic() - started)


def read_one(url: str, file: Path, span: tuple[int, int] | None = None) -> Got:
    """One reading, of the right length; while a shard's length is unknown, a range is answered with the whole."""
    got = read(url, file, span=span)
    ranged = span is not None and got.status == 206
    assert got.whole
    assert got.count == (span[1] - span[0] + 1 if ranged and span else file.stat().st_size)
    return got


def total(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def tell(answers: Sequence[Got], files: Sequence[Path], seconds: float) -> None:
    sent = sum(got.count for got in answers)
    print(f"{len(files)} shards, {total(files) / 1e9:.2f} GB; {len(answers)} readings, {sent / 1e9:.2f} GB in {seconds:.1f} s")


def segments(files: Sequence[Path], size: int) -> Counter[str]:
    return Counter({f"/{file.name}": -(-file.stat().st_size // size) for file in files})


def program() -> Sequence[str]:
    return FOREBAY if SEGMENT == SEGMENT_BYTES else small_segments(SEGMENT)


@pytest.mark.needs("nginx")
def test_nginx_is_asked_once_for_each_segment(place: Path) -> None:
    """Shards of up to 36 segments: the origin's log has one GET a segment, and nothing else."""
    files = make_shards(place / "files", shard_sizes(100 * HALVES, 1_000, 300 * MB, bend=2))
    with servers.nginx(place / "nginx", place / "files") as origin:
        # on a busy machine the readings outlast the minute after which a shard is compared, by a HEAD, where no job is named
        flags = ("--cache-size", str(4000 * MB), "--revalidate", "never")
        with running(place, *flags, allow=[origin.base()], program=program()) as sidecar:
            read_all(sidecar, files, origin.url)
            assert sidecar.metric("forebay_requests_total", result="bypass") == 0
        log = origin.log()
    assert {(served.method, served.status) for served in log} == {("GET", 206)}
    assert Counter(served.path for served in log) == segments(files, SEGMENT)
    assert sum(served.sent for served in log) == total(files)
    print(f"{len(log)} origin requests for {segments(files, SEGMENT).total()} segments")


@pytest.mark.needs("nginx")
@pytest.mark.parametrize("kind", ["without_range", "without_length"])
def test_a_poor_origin(place: Path, kind: str) -> None:
    """No Range: one body serves all readers of a shard, its ranges too. No length either: nothing is kept, and each has a body of its own."""
    files = make_shards(place / "files", shard_sizes(30 * HALVES, 1_000, 120 * MB, bend=2))
    options = {"without_range": servers.NO_RANGE, "without_length": servers.NO_LENGTH}
    with servers.nginx(place / "nginx", place / "files", **{kind: options[kind]}) as origin:
        with running(place, "--cache-size", str(1500 * MB), allow=[origin.base(kind)], program=program()) as sidecar:
            read_all(sidecar, files, partial(origin.url, name=kind))
        log = origin.log(kind)
    assert {(served.method, served.status) for served in log} == {("GET", 200)}
    counts = Counter(served.path for served in log)
    assert set(counts.values()) <= ({1} if kind == "without_range" else {3, 4, 5, 6}), counts


def test_the_gateway_is_asked_once_for_each_segment(place: Path, rados_gateway: S3Server) -> None:
    """Signed requests of the real S3; shards of up to 8 segments, since its memory store is small and slow."""
    files = make_shards(place / "files", shard_sizes(30 * HALVES, 1_000, 60 * MB, bend=1.6))
    with rados_gateway.client() as boto:
        boto.create_bucket(Bucket="many")
        for file in files:
            with file.open("rb") as body:
                boto.put_object(Bucket="many", Key=f"train/{file.name}", Body=body)
    flags = ("--cache-size", str(1000 * MB))
    with running(place, *flags, allow=[rados_gateway.url], environ=rados_gateway.environ, program=program()) as sidecar:
        read_all(sidecar, files, "s3://many/train/{}".format)
        assert sidecar.metric("forebay_origin_requests_total", code="206") == segments(files, SEGMENT).total()
        # A store that keeps no checksums is asked for them a few times: 4 answers without, and what 16 readers had asked meanwhile.
        assert sidecar.metric("forebay_origin_requests_total") - segments(files, SEGMENT).total() <= 20
        assert sidecar.metric("forebay_origin_bytes_total") == total(files)
    with rados_gateway.client() as boto:
        for file in files:
            boto.delete_object(Bucket="many", Key=f"train/{file.name}")
