"""Two Ray nodes on this machine, each with a run directory and a cache of its own, as two machines would have.

    python -m cluster.ray_nodes FOLDER [NAME=VALUE …]      # the variables are for both nodes

It prints one line of JSON with the address of the cluster. A line on stdin takes the second node away, as a power cut would. The end of
stdin ends the cluster. It is run by the Python that has Ray, which may not be the one that reads the answer.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

STORE_BYTES = 80 << 20  # the least that Ray takes; a stage keeps only small answers in it


def node(folder: Path, variables: dict[str, str]) -> dict[str, Any]:
    """What Ray wants to know of a node with one processor whose sidecar lives below ``folder``."""
    (folder / "run").mkdir(parents=True, mode=0o700)
    own = {"XDG_RUNTIME_DIR": str(folder / "run"), "FOREBAY_CACHE_DIR": str(folder / "cache"), "FOREBAY_SOCKET": "off"}
    return {"num_cpus": 1, "object_store_memory": STORE_BYTES, "env_vars": own | variables}


def main(folder: Path, variables: Iterable[str]) -> None:
    """Until stdin ends."""
    shared = dict(word.split("=", 1) for word in variables)
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as short:
        os.environ["RAY_TMPDIR"] = short  # a socket's path has 107 characters at most, and Ray's own part is most of it
        serve(folder, shared)


def serve(folder: Path, shared: dict[str, str]) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={**node(folder / "a", shared), "include_dashboard": False})
    second = cluster.add_node(**node(folder / "b", shared))
    print(json.dumps({"address": cluster.address}), flush=True)
    if sys.stdin.readline():
        cluster.remove_node(second, allow_graceful=False)
        print(json.dumps({"gone": "b"}), flush=True)
        sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
