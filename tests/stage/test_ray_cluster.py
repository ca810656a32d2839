"""``forebay stage --engine ray`` on two nodes of a real Ray, in a network with only loopback: the bytes are those of the local engine.

Ray lives in an environment of its own (``scripts/test --long`` makes it).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.lengths import LEFT, LONG
from support.netns import lonely_network
from support.other_python import clean_environment
from support.scripted_origin import ScriptedOrigin, in_a_thread
from support.sidecar import wait_until
from support.stage_work import files_of, put_shards

from forebay_proxy.wire.protocol.runfile import read_run_file

ROOT = Path(__file__).parents[2]
WITH_RAY = Path(f"{sys.prefix}-ray") / "bin" / "python"
SOURCES = os.pathsep.join(str(ROOT / name) for name in ("tests", "examples", "proxy", "loader", "stage"))
STAGE_S = 240
SHARDS = 8

if not LONG:
    LEFT.append("stages on a real Ray cluster")

pytestmark = [
    pytest.mark.skipif(not LONG, reason="scripts/test --long runs a Ray cluster"),
    pytest.mark.skipif(not WITH_RAY.exists(), reason=f"no {WITH_RAY}: scripts/test --long makes it"),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("ray"),
]


@dataclass
class World:
    """A running cluster, an origin, and what the local engine makes of ``src``."""

    folder: Path
    process: subprocess.Popen[str]
    address: str
    src: str
    whole: dict[str, bytes]
    environ: dict[str, str]

    def begin(self, dst: Path, *engine: str) -> subprocess.Popen[str]:
        words = ["stage", self.src, str(dst), "--map", "support.stage_work:slow", "--map", "support.stage_work:dies_once", "--shuffle", "3"]
        words += ["--samples-per-shard", "10", "--quiet", *engine]
        return subprocess.Popen(
            [WITH_RAY, "-P", "-m", "forebay_proxy", *words], cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def begin_on_ray(self, dst: Path) -> subprocess.Popen[str]:
        return self.begin(dst, "--engine", "ray", "--address", self.address)


def ended(process: subprocess.Popen[str]) -> str:
    """What it printed; AssertionError with its stderr when it failed."""
    out, errors = process.communicate(timeout=STAGE_S)
    assert process.returncode == 0, errors[-3000:]
    return out


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("ray")
    with lonely_network(), in_a_thread(ScriptedOrigin()) as origin:
        put_shards(origin, "far", (9, 12, 0, 14, 11, 8, 13, 10))
        sidecars = {"FOREBAY_ALLOW_ORIGIN": origin.base, "FOREBAY_CACHE_SIZE": "100MB", "FOREBAY_PORT": "0", "FOREBAY_IDLE_EXIT_S": "5"}
        environ = clean_environment(folder / "run", PYTHONPATH=SOURCES, RAY_USAGE_STATS_ENABLED="0", HOME=str(folder), **sidecars)
        environ["FOREBAY_CACHE_DIR"] = str(folder / "cache")
        marks = folder / "marks"
        variables = [f"{name}={value}" for name, value in sidecars.items()] + [f"STAGE_MARKS={marks}"]
        with subprocess.Popen(
            [WITH_RAY, "-m", "cluster.ray_nodes", folder / "nodes", *variables], env=environ, cwd=folder, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        ) as process:  # fmt: skip
            try:
                assert process.stdout is not None
                address = json.loads(process.stdout.readline())["address"]
                made = World(folder, process, address, origin.url("/far/{00..07}.tar"), {}, environ)
                ended(made.begin(folder / "whole", "--engine", "local"))
                made.whole = files_of(folder / "whole")
                assert sum(json.loads(made.whole["sizes.json"]).values()) == 77
                marks.mkdir()
                yield made
            finally:
                assert process.stdin is not None
                process.stdin.close()


def test_a_worker_that_is_killed(world: World, tmp_path: Path) -> None:
    """Its shard is made again, here or on the other node. Each node reads through its own sidecar, which the workers started."""
    ended(world.begin_on_ray(tmp_path / "out"))
    assert list((world.folder / "marks").iterdir())
    assert files_of(tmp_path / "out") == world.whole
    for name in ("a", "b"):
        found = read_run_file({"XDG_RUNTIME_DIR": str(world.folder / "nodes" / name / "run")})
        assert found is not None
        assert list((world.folder / "nodes" / name / "cache").iterdir())


def test_a_driver_that_is_killed(world: World, tmp_path: Path) -> None:
    """The same command goes on; what was finished is not made again."""
    process = world.begin_on_ray(tmp_path / "out")
    done = tmp_path / "out" / "_stage" / "done"
    wait_until(lambda: list(done.glob("part-*")), STAGE_S)
    process.kill()
    process.communicate()
    before = {path.name: path.stat().st_mtime_ns for path in done.iterdir()}
    assert 0 < len(before) < SHARDS
    ended(world.begin_on_ray(tmp_path / "out"))
    assert files_of(tmp_path / "out") == world.whole
    assert {name: (done / name).stat().st_mtime_ns for name in before} == before


def test_a_step_that_no_node_has(world: World, tmp_path: Path) -> None:
    """The driver can import it, the nodes cannot: said with what to do, and nothing is made."""
    (here := tmp_path / "here").mkdir()
    (here / "only_here.py").write_text("import os\nassert 'STAGE_MARKS' not in os.environ\ndef clean(sample): return sample\n")
    done = subprocess.run(
        [WITH_RAY, "-P", "-m", "forebay_proxy", "stage", world.src, str(tmp_path / "out"), "--map", "only_here:clean", "--quiet",
         "--engine", "ray", "--address", world.address],
        cwd=here, env=world.environ, capture_output=True, text=True, timeout=STAGE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "--working-dir" in done.stderr
    assert not list((tmp_path / "out").glob("*.tar"))


def test_a_node_that_is_gone(world: World, tmp_path: Path) -> None:
    """The stage ends on the other, without another command."""
    process = world.begin_on_ray(tmp_path / "out")
    wait_until(lambda: list((tmp_path / "out" / "_stage" / "done").glob("part-*")), STAGE_S)
    assert world.process.stdin is not None
    assert world.process.stdout is not None
    print("gone", file=world.process.stdin, flush=True)
    assert json.loads(world.process.stdout.readline()) == {"gone": "b"}
    ended(process)
    assert files_of(tmp_path / "out") == world.whole
