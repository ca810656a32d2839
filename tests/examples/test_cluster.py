"""The way of a data set through a cluster: far origin, stage, S3 store, two training nodes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.lengths import LEFT, LONG
from support.netns import lonely_network
from support.s3_servers import S3Server, rados_gateway  # noqa: F401

pytest.importorskip("PIL", reason="needs Pillow, as the example does")
pytest.importorskip("webdataset")
pytestmark = pytest.mark.once  # what training makes of shards with the older one is tried elsewhere

WITH_RAY = Path(f"{sys.prefix}-ray") / "bin" / "python"
SOURCES = [Path(__file__).parents[2] / name for name in ("examples", "proxy", "loader", "stage")]
PLAYED_S = 280

if not LONG:
    LEFT.append("examples/cluster on Ray")


def play(folder: Path, *arguments: str, **variables: str) -> str:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES)), "HOME": str(folder), "TMPDIR": str(folder), **variables}
    done = subprocess.run(
        [sys.executable, "-m", "cluster", *arguments], env=environ, capture_output=True, text=True, timeout=PLAYED_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert not list(folder.glob("forebay-cluster-*"))
    return done.stdout


def test_on_this_machine(tmp_path: Path, rados_gateway: S3Server) -> None:  # noqa: F811
    """Each training node sees every sample once, the far origin sends each byte once, and the figures are printed."""
    small = ("--shards", "2", "--samples", "16", "--latency-ms", "20", "--store", rados_gateway.url)
    told = play(tmp_path, *small, **rados_gateway.environ)
    assert len(re.findall(r"^training node \d 32 samples, 32 distinct", told, re.MULTILINE)) == 2
    assert re.search(r"^far origin .* sent 1\.0\d\d of them", told, re.MULTILINE)


@pytest.mark.skipif(not LONG, reason="scripts/test --long runs a Ray cluster")
@pytest.mark.skipif(not WITH_RAY.exists(), reason=f"no {WITH_RAY}: scripts/test --long makes it")
@pytest.mark.xdist_group("ray")
@pytest.mark.needs("radosgw", "ceph-mon", "ceph-osd")
def test_on_two_ray_nodes(tmp_path: Path) -> None:
    """The same, with a gateway of its own, in a network that has only loopback."""
    with lonely_network():
        told = play(tmp_path, "--ray-python", str(WITH_RAY), RAY_USAGE_STATS_ENABLED="0")
    assert "Ray is not installed" not in told
    assert len(re.findall(r"^training node \d 512 samples, 512 distinct", told, re.MULTILINE)) == 2
