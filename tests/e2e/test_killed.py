"""kill -9 of the sidecar in the middle of an epoch: as many samples as before, and the same bytes, whether it comes back or not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import nginx as servers
from support.nginx import Nginx
from support.s3_servers import S3Server
from support.sidecar import start
from support.tars import expected, tar_shard

import forebay_loader as fb

pytestmark = pytest.mark.webdataset

SHARDS, SAMPLES, SIZE = 4, 16, 1_200_000  # 19 MB a shard: more than sockets and buffers hold, so the cut is felt
WANTED = expected(SHARDS, SAMPLES, SIZE)
QUICK = fb.Limits(resume_s=1, open_s=0.2, pause_s=0.02, jitter_s=0.01)  # for the runs in which it never comes back


@pytest.fixture
def files(place: Path) -> Path:
    (place / "files").mkdir()
    for shard in range(SHARDS):
        (place / f"files/{shard:03d}.tar").write_bytes(tar_shard(shard, SAMPLES, SIZE))
    return place / "files"


@pytest.fixture
def origin(place: Path, files: Path) -> Iterator[Nginx]:
    with servers.nginx(place / "nginx", files) as made:
        yield made


def samples(urls: list[str] | str, limits: fb.Limits) -> Iterator[tuple[str, bytes, str]]:
    for sample in fb.WebDataset(urls, shardshuffle=False, limits=limits):
        yield sample["__key__"], sample["bin"], sample["__url__"]


class Mortal:
    """A sidecar that is killed at a sample, and started again at its address, or not."""

    def __init__(self, place: Path, *allow: str, **environ: str) -> None:
        self._place, self._allow, self._environ = place, allow, environ
        self.sidecar = start(place, "--cache-size", "200MB", allow=allow, environ=environ)

    def die(self, *, again: bool) -> None:
        self.sidecar.kill()
        if again:
            flags = ("--cache-size", "200MB", "--port", str(self.sidecar.port))
            self.sidecar = start(self._place, *flags, default_port=True, allow=self._allow, environ=self._environ)


@pytest.fixture
def lives() -> Iterator[list[Mortal]]:
    made: list[Mortal] = []
    yield made
    for each in made:
        each.sidecar.terminate()


def epoch(urls: list[str] | str, mortal: Mortal, at: tuple[int, ...], *, again: bool, limits: fb.Limits) -> list[tuple[str, bytes, str]]:
    read = []
    for number, sample in enumerate(samples(urls, limits)):
        read.append(sample)
        if number in at:
            mortal.die(again=again)
    return read


@pytest.mark.needs("nginx")
def test_it_comes_back(place: Path, origin: Nginx, lives: list[Mortal], monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in two shards, back at once: the stream goes on where it was, and nothing is read past the sidecar."""
    lives.append(Mortal(place, origin.base()))
    monkeypatch.setenv("FOREBAY_URL", lives[0].sidecar.url)
    before = fb.counters()
    read = epoch(origin.url("{000..003}.tar"), lives[0], (2, 34), again=True, limits=fb.Limits())
    assert len(read) == len(WANTED)
    assert {key: data for key, data, _ in read} == WANTED
    assert {url for *_, url in read} == {origin.url(f"{shard:03d}.tar") for shard in range(SHARDS)}
    spent = {name: count - before[name] for name, count in fb.counters().items()}
    assert (spent["resumed"], spent["fallback_total"], spent["bytes_direct"]) == (2, 0, 0)
    print(spent)


@pytest.mark.needs("nginx", "curl")
@pytest.mark.parametrize("written", [pytest.param("{}", marks=pytest.mark.once), "pipe:curl -s {}"], ids=["url", "curl"])
def test_it_stays_away(place: Path, origin: Nginx, lives: list[Mortal], monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    """Killed for good: this shard and the later ones come from the origin itself."""
    lives.append(Mortal(place, origin.base()))
    monkeypatch.setenv("FOREBAY_URL", lives[0].sidecar.url)
    read = epoch(written.format(origin.url("{000..003}.tar")), lives[0], (2,), again=False, limits=QUICK)
    assert len(read) == len(WANTED)
    assert {key: data for key, data, _ in read} == WANTED
    print(fb.counters())


@pytest.mark.once
@pytest.mark.needs("aws")
def test_it_stays_away_from_s3(
    place: Path, files: Path, rados_gateway: S3Server, lives: list[Mortal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An aws command: webdataset's own way from byte 0, the part that was delivered skipped and compared."""
    with rados_gateway.client() as boto:
        boto.create_bucket(Bucket="mortal")
        for shard in range(2):
            boto.put_object(Bucket="mortal", Key=f"{shard:03d}.tar", Body=(files / f"{shard:03d}.tar").read_bytes())
    for name, value in rados_gateway.environ.items():
        monkeypatch.setenv(name, value)
    lives.append(Mortal(place, rados_gateway.url, **rados_gateway.environ))
    monkeypatch.setenv("FOREBAY_URL", lives[0].sidecar.url)
    url = "pipe:aws s3 cp s3://mortal/{000..001}.tar -"
    fb.enable()
    try:
        assert_runs(url)
        read = epoch(url, lives[0], (2,), again=False, limits=QUICK)
    finally:
        fb.disable()
    assert {key: data for key, data, _ in read} == {key: data for key, data in WANTED.items() if key < "002"}
    assert len(read) == 2 * SAMPLES
    print(fb.counters())


def assert_runs(url: str) -> None:
    """The command works without us here, or there is nothing to fall back on."""
    command = url.removeprefix("pipe:").replace("{000..001}", "000")
    done = subprocess.run(["sh", "-c", f"{command} | wc -c"], capture_output=True, text=True, timeout=240, check=False)
    if int(done.stdout) < 1000:
        pytest.skip(f"aws does not run here: {done.stderr[-200:]}")
