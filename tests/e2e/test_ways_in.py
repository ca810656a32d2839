"""Each way in, with stock WebDataset, a real torch DataLoader of two workers and a whole epoch: every sample exactly once."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support import nginx as servers
from support.nginx import Nginx
from support.sidecar import Sidecar, running, start, wait_until
from support.training import (
    DATASET,
    PATTERN,
    SHARDS,
    STAGES,
    STOCK,
    begin_training,
    epoch_of,
    make_data_set,
    popen,
    whole_epoch,
    write_script,
)

from forebay_proxy.node.runfile import RunDirectory

pytestmark = [pytest.mark.webdataset, pytest.mark.needs("nginx", "curl")]

IMPORT = "import forebay_loader as fb"


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    directory = tmp_path_factory.mktemp("origin")
    make_data_set(directory / "files")
    with servers.nginx(directory / "nginx", directory / "files") as made:
        yield made


def serving(place: Path, origin: Nginx) -> AbstractContextManager[Sidecar]:
    """A sidecar that the run file leads to."""
    return running(place, "--cache-size", "200MB", allow=[origin.base()])


def shards_of(origin: Nginx, before: int) -> list[str]:
    """What nginx was asked since."""
    return sorted(served.path for served in origin.log()[before:])


EACH_ONCE = [f"/train-{shard:03d}.tar" for shard in range(SHARDS)]


def by_env(place: Path, script: Path, url: str) -> subprocess.Popen[str]:
    return popen(place, ["sh", "-c", f'eval "$(forebay env)" && exec python {script} {shlex.quote(url)} 2'])


def by_env_once_imported(place: Path, script: Path, url: str) -> subprocess.Popen[str]:
    evaluated, errors = popen(place, ["sh", "-c", 'eval "$(forebay env)" && exec env -0']).communicate(timeout=240)
    assert errors == ""
    found = dict(line.split("=", 1) for line in evaluated.rstrip("\0").split("\0"))
    return begin_training(place, script, url, "2", **{name: found[name] for name in ("GOPEN_REWRITE", "NO_PROXY", "no_proxy")})


@pytest.mark.parametrize(
    ("begin", "written"),
    [pytest.param(by_env, "{}", marks=pytest.mark.once), (by_env_once_imported, "pipe:curl -s -f -L {} || true")],
    ids=["url", "curl"],
)
def test_env(place: Path, origin: Nginx, begin: Callable[[Path, Path, str], subprocess.Popen[str]], written: str) -> None:
    """eval "$(forebay env)" and an unchanged script: through the sidecar by GOPEN_REWRITE; samples name the original URL."""
    script, url = write_script(place), written.format(origin.url(PATTERN))
    before = len(origin.log())
    with serving(place, origin) as sidecar:
        process = begin(place, script, url)
        output, errors = process.communicate(timeout=240)
        assert process.returncode == 7, errors
        assert sum(sidecar.status()["requests"].values()) == SHARDS
    assert whole_epoch(epoch_of(output))
    assert epoch_of(output).urls == {written.format(origin.url(name.lstrip("/"))) for name in EACH_ONCE}
    assert shards_of(origin, before) == EACH_ONCE


@pytest.mark.once
def test_run(place: Path, origin: Nginx) -> None:
    """forebay run -- python train.py: starts a sidecar, the exit code is the script's, the summary is on stderr, then the sidecar ends."""
    script = write_script(place)
    before = len(origin.log())
    settings = {
        "FOREBAY_ALLOW_ORIGIN": origin.base(), "FOREBAY_CACHE_SIZE": "200MB", "FOREBAY_PORT": "0", "FOREBAY_IDLE_EXIT_S": "1",
        "FOREBAY_CACHE_DIR": str(place / "cache"),
    }  # fmt: skip
    process = popen(place, ["forebay", "run", "--", "python", str(script), origin.url(PATTERN), "2"], **settings)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 7, errors
    assert whole_epoch(epoch_of(output))
    assert epoch_of(output).urls == {origin.url(name.lstrip("/")) for name in EACH_ONCE}
    assert re.search(r"1\d\.\d MB read, .*; 0 errors", errors), errors
    assert shards_of(origin, before) == EACH_ONCE
    wait_until(lambda: RunDirectory(place / "run").live() == [])


@pytest.mark.parametrize(
    ("dataset", "prelude"),
    [pytest.param(DATASET, IMPORT, marks=pytest.mark.once), (STAGES, f"{IMPORT}\nfb.enable()"), (STOCK, f"{IMPORT}\nfb.enable()")],
    ids=["WebDataset", "ahead", "enable"],
)
def test_in_code(place: Path, origin: Nginx, dataset: str, prelude: str) -> None:
    """fb.WebDataset, fb.ahead() in a pipeline, fb.enable() alone; where it reads ahead, the sidecar knows both workers' plans."""
    script, before = write_script(place, dataset, prelude), len(origin.log())
    with serving(place, origin) as sidecar:
        process = begin_training(place, script, origin.url(PATTERN), "2", "plans", FOREBAY_URL=sidecar.url, FOREBAY_JOB="epoch")
        output, errors = process.communicate(timeout=240)
        assert process.returncode == 7, errors
        assert sidecar.status()["plans"] == [], "withdrawn at the end"
        assert sidecar.metric("forebay_plan_deviation_total") == 0
    epoch = epoch_of(output)
    assert whole_epoch(epoch)
    assert epoch.urls == {origin.url(name.lstrip("/")) for name in EACH_ONCE}
    assert {reader.rpartition("/")[0] for reader in epoch.planners} == (set() if dataset == STOCK else {"epoch/0/0", "epoch/0/1"})
    assert shards_of(origin, before) == EACH_ONCE


LIMITS = "limits=fb.Limits(resume_s=0.5)"


@pytest.mark.parametrize(
    ("dataset", "prelude", "written"),
    [
        pytest.param(DATASET[:-1] + f", {LIMITS})", IMPORT, "pipe:curl -s {}", id="WebDataset", marks=pytest.mark.once),
        pytest.param(
            STAGES.replace("fb.ahead(), wds.tarfile_to_samples()", f"fb.tarfile_to_samples({LIMITS})"),
            IMPORT,
            "{}",
            id="tarfile_to_samples",
            marks=pytest.mark.once,
        ),
        pytest.param(STOCK, f"{IMPORT}\nfb.enable({LIMITS})", "{}", id="enable"),
    ],
)
def test_killed_for_good_under_a_data_loader(place: Path, origin: Nginx, dataset: str, prelude: str, written: str) -> None:
    """kill -9 while two workers read, and nobody starts another: the same samples from the origin, and one warning of both workers."""
    script = write_script(place, dataset, prelude)
    sidecar = start(place, "--cache-size", "200MB", allow=[origin.base()])
    try:
        process = begin_training(place, script, written.format(origin.url(PATTERN)), "2", FOREBAY_URL=sidecar.url)
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdout, process.stderr:
            lines = [process.stdout.readline() for _ in range(10)]
            sidecar.kill()
            rest, errors = process.stdout.read(), process.stderr.read()
        process.wait(240)
    finally:
        sidecar.kill()
    assert process.returncode == 7, errors
    assert whole_epoch(epoch_of("".join(lines) + rest))
    assert errors.count("going on without the sidecar") == 1, errors
