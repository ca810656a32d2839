"""``forebay run`` over unchanged scripts in an environment without Forebay: every kind of pipeline, every way to start a worker."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from support import takeover_train
from support.fake_proxy import FakeServer
from support.lengths import ordinarily
from support.other_python import clean_environment, other_python
from support.sidecar import Sidecar, running
from support.tars import expected, tar_shard

pytest.importorskip("webdataset")
pytest.importorskip("torch")

pytestmark = pytest.mark.webdataset

SHARDS = takeover_train.SHARDS
# How a worker starts, and what it has imported then, is no matter of webdataset's version.
STARTS = [*takeover_train.WORKERS]
TAKEN = ordinarily(2, of=len(STARTS), what="ways to start workers that are taken over")
STARTS = STARTS[: 1 if version("webdataset").startswith("0.") else TAKEN]
SAMPLES, SAMPLE_BYTES = 3, 20_000
SCRIPT = Path(takeover_train.__file__)
ROOT = Path(__file__).parents[2]
FOREBAY = f"import sys; sys.path[:0] = {[str(ROOT / 'proxy'), str(ROOT / 'loader')]!r}; from forebay_proxy.cli.main import main; main()"
WANTED = {key: hashlib.md5(data).hexdigest() for key, data in expected(SHARDS, SAMPLES, SAMPLE_BYTES).items()}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return other_python(tmp_path_factory.mktemp("training") / "venv")


@pytest.fixture
def origin() -> Iterator[FakeServer]:
    with FakeServer().running() as server:
        for shard in range(SHARDS):
            server.put(f"/train-{shard:03d}.tar", tar_shard(shard, SAMPLES, SAMPLE_BYTES))
        yield server


@pytest.fixture
def sidecar(place: Path, origin: FakeServer) -> Iterator[Sidecar]:
    with running(place, "--cache-size", "200MB", allow=[origin.url]) as found:
        yield found


def run_beside(place: Path, sidecar: Sidecar, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """``forebay run -- COMMAND`` with nothing of ours on anybody's PYTHONPATH."""
    environ = clean_environment(place / "run", FOREBAY_URL=sidecar.url, **variables)
    argv = [sys.executable, "-P", "-c", FOREBAY, "run", "--", *command]
    return subprocess.run(argv, env=environ, cwd=place, capture_output=True, text=True, timeout=240, check=False)


def test_every_worker_of_every_pipeline_has_a_plan(place: Path, python: str, origin: FakeServer, sidecar: Sidecar) -> None:
    """Plain, resampled, with cache_dir and as explicit stages, in workers that stay: each pass is announced, each sample is right."""
    copied = {f"train-{number:03d}.tar" for number in range(SHARDS)}  # by 1.x, for those who ask for a path; 0.2.86 has none to ask for
    copies = {start: place / "copies" / start for start in STARTS}
    for folder in copies.values():
        folder.mkdir(parents=True)
    urls = f"{origin.url}/train-{{000..{SHARDS - 1:03d}}}.tar"
    done = run_beside(place, sidecar, python, str(SCRIPT), urls, str(place / "copies"), sidecar.url, *STARTS)
    assert done.returncode == 0, done.stderr[-3000:]
    passes = [json.loads(line) for line in done.stdout.splitlines()]
    for start in STARTS:
        assert_whole([one for one in passes if one["start"] == start], takeover_train.WORKERS[start])
        assert set(os.listdir(copies[start])) in (set(), copied)
    assert len([one for one in origin.requests if one.method == "GET"]) == SHARDS  # each came once, for all passes of all workers
    assert f"{sum(takeover_train.WORKERS[start] for start in STARTS)} processes taken over, 0 went direct" in done.stderr


def assert_whole(passes: list[dict[str, Any]], workers: int) -> None:
    """Both epochs of the workers of one loader."""
    assert len(passes) == 2 * workers * len(takeover_train.KINDS)
    assert len({one["pid"] for one in passes}) == workers
    assert [(one["kind"], one["worker"], one["epoch"]) for one in passes if not one["planned"]] == []
    for epoch in range(2):
        for kind in takeover_train.KINDS:
            found: dict[str, str] = {}
            for one in passes:
                if (one["kind"], one["epoch"]) == (kind, epoch):
                    found |= one["samples"]
            assert found.items() <= WANTED.items()
            assert kind == "resampled" or found == WANTED


LIGHT = """
import sys, warnings
warnings.simplefilter("ignore")
import webdataset as wds
{prelude}
print(len(list(wds.WebDataset(sys.argv[1], shardshuffle=False))))
"""


@pytest.fixture(scope="module")
def light_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Without torch, whose import would be most of the time."""
    return other_python(tmp_path_factory.mktemp("training") / "venv", without=("torch",))


def script(place: Path, name: str, prelude: str = "") -> str:
    path = place / name
    path.write_text(LIGHT.format(prelude=prelude))
    return str(path)


@pytest.mark.once
def test_a_launcher_that_wipes_python_path(place: Path, light_python: str, origin: FakeServer, sidecar: Sidecar) -> None:
    """Without the .pth its processes read as by GOPEN_REWRITE; with it they are taken over."""
    url = f"{origin.url}/train-000.tar"
    command = ["env", "-u", "PYTHONPATH", light_python, script(place, "train.py"), url]
    before = run_beside(place, sidecar, *command)
    install = [sys.executable, "-P", "-c", FOREBAY, "takeover", "install", "--python", light_python]
    subprocess.run(install, env=clean_environment(place / "run"), cwd=place, capture_output=True, check=True)
    after = run_beside(place, sidecar, *command)
    assert [done.stdout.strip() for done in (before, after)] == [str(SAMPLES)] * 2, before.stderr + after.stderr
    assert "0 processes taken over" in before.stderr
    assert "1 process taken over, 0 went direct" in after.stderr


@pytest.mark.once
def test_the_summary_says_who_went_direct_and_why(place: Path, light_python: str, origin: FakeServer, sidecar: Sidecar) -> None:
    """Three processes of one run: taken over, with an opener of its own, with a command we do not know."""
    (place / "a.tar").write_bytes(tar_shard(0, SAMPLES))
    own = f"wds.gopen_schemes['s3'] = lambda url, *rest, **options: open({str(place / 'a.tar')!r}, 'rb')"
    plain, other = script(place, "plain.py"), script(place, "own.py", own)
    lines = [
        f"{light_python} {plain} {origin.url}/train-000.tar",
        f"{light_python} {other} s3://bucket/a.tar",
        f"{light_python} {plain} 'pipe:dd status=none if={place}/a.tar'",
    ]
    done = run_beside(place, sidecar, "sh", "-c", " && ".join(lines))
    assert done.stdout.split() == [str(SAMPLES)] * 3, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "taken over" in line]
    assert line.startswith("forebay: 1 process taken over, 2 went direct: ")
    assert "the script has its own opener for s3 (1)" in line
    assert "pipe: command dd is not one Forebay reads for itself (1)" in line
