"""Lightning and Accelerate, which fetch a batch ahead: stopped anywhere, a training is given what it would have been given."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import resume_recipes
from support.fake_proxy import FakeServer
from support.tars import tar_shard
from support.warm_python import python_program

ROOT = Path(__file__).parents[3]
SIZES = (7, 3, 9, 1, 6, 4)

pytest.importorskip("webdataset")
pytestmark = pytest.mark.once  # what one version tells enough about


def trained(trainer: str, folder: Path) -> dict[str, Any]:
    if importlib.util.find_spec(trainer) is None:
        pytest.skip(f"{trainer} is not installed: the extra for tests beside torch has it")
    server = FakeServer()
    for number, samples in enumerate(SIZES):
        server.put(f"/s3/bucket/{number:03d}.tar", tar_shard(number, samples=samples, size=10))
    with server.running():
        environ = {**os.environ, "FOREBAY_URL": server.url, "FOREBAY_FD": "0", "XDG_RUNTIME_DIR": str(folder), "CUDA_VISIBLE_DEVICES": ""}
        environ["PYTHONPATH"] = f"{ROOT}/proxy:{ROOT}/loader:{ROOT}/examples"
        command = [resume_recipes.__file__, trainer, str(folder)]
        with python_program(command, environ, folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            _, errors = run.communicate(timeout=250)
    assert run.returncode == 0, errors[-4000:]
    found: dict[str, Any] = json.loads((folder / f"{trainer}.json").read_text())
    return found


def test_under_lightning(tmp_path: Path) -> None:
    """Saved by ModelCheckpoint within an epoch, and at its end."""
    found = trained("lightning", tmp_path)
    later = found.pop("of the second epoch")
    assert len(found["whole"]) - later == later  # both epochs have as many batches
    for name in found:
        assert found[name] == found["whole"], name


def test_under_accelerate(tmp_path: Path) -> None:
    """Saved by ``save_state``, with a loader of Accelerate's around ours."""
    found = trained("accelerate", tmp_path)
    for name in found:
        assert found[name] == found["whole"], name
