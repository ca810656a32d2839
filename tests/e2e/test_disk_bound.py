"""The disk bound is hard: sampled from outside while 16 readers pour nine times its size through it."""

from __future__ import annotations

import itertools
import random
from functools import partial
from pathlib import Path

import pytest
from support import nginx as servers
from support.disk_sampler import sampling
from support.lengths import ordinarily
from support.readers import make_shard, many, read
from support.sidecar import running, small_segments

from forebay_proxy.core.segments import SEGMENT_BYTES

pytestmark = [pytest.mark.needs("nginx")]

LIMIT = ordinarily(25, of=200, what="MB of a cache at its bound") * 1_000_000
SHRINK = 200_000_000 // LIMIT  # shards and segments too: as many come and go
SIZES = [size // SHRINK for size in (3_000_000, 8 << 20, 20_000_000, 33_000_001, 60_000_000, 90_000_000)]


@pytest.mark.parametrize("kind", ["plain", "without_range"])
def test_the_limit_holds_at_every_sample(place: Path, kind: str) -> None:
    """Never above the limit, unlinked files included, and every byte right; also where a shard comes whole or not at all."""
    (place / "files").mkdir()
    sizes = list(itertools.islice(itertools.cycle(SIZES), 48 if kind == "plain" else 24))
    files = [make_shard(place / f"files/{number}.tar", size, number) for number, size in enumerate(sizes)]
    with servers.nginx(place / "nginx", place / "files", **{kind: "" if kind == "plain" else servers.NO_RANGE}) as origin:
        work = [partial(read, origin.url(file.name, kind), file) for file in files]
        random.Random(1).shuffle(work)
        program = small_segments(SEGMENT_BYTES // SHRINK)
        with running(place, "--cache-size", str(LIMIT), allow=[origin.base(kind)], program=program) as sidecar:
            with sampling(sidecar.cache_dir, sidecar.process.pid) as seen:
                answers = many(16, [partial(read, sidecar.proxied(job.args[0]), job.args[1]) for job in work])
            assert all(got.whole for got in answers)
            bypassed = sidecar.metric("forebay_request_bytes_total", result="bypass")
            status = sidecar.status()["cache"]
    assert sum(got.count for got in answers) == sum(sizes)
    print(f"{sum(sizes) / 1e6:.0f} MB through {LIMIT / 1e6:.0f} MB: {vars(seen)}, {bypassed / 1e6:.0f} MB bypassed, {status}")
    assert seen.samples >= 4
    assert seen.peak_bytes <= LIMIT
    assert seen.peak_bytes > LIMIT // 2, "the cache was used"
