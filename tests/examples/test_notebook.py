"""The notebook: kept without what it printed, and run from top to bottom; before a release as Jupyter would."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.lengths import LEFT, LONG
from support.sidecar import environment, forebay
from support.warm_python import python_program

pytest.importorskip("torch")
pytest.importorskip("PIL", reason="the notebook makes pictures")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
PROGRAM_S = 240.0
AS_A_PROGRAM = """
import json, sys
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), globals())
"""
# Over sockets of files: over TCP all users of this machine could talk to the kernel.
AS_JUPYTER_DOES = """
import sys, nbclient, nbformat
from jupyter_client.manager import AsyncKernelManager
notebook = nbformat.read(sys.argv[1], as_version=4)
kernel = AsyncKernelManager(transport="ipc", ip="kernel", kernel_name="python3")
nbclient.NotebookClient(notebook, km=kernel, timeout=120).execute()
print("".join(output.get("text", "") for cell in notebook["cells"] for output in cell.get("outputs", ())))
"""

if not LONG:
    LEFT.append("the notebook in a kernel of Jupyter's")


def fresh(arguments: Sequence[str], environ: dict[str, str], directory: Path, **streams: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *arguments], env=environ, cwd=directory, **streams)


def test_it_is_stored_without_outputs() -> None:
    """What one machine printed is no part of it: each run would change it."""
    cells = [cell for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert [cell for cell in cells if cell["outputs"] or cell["execution_count"] is not None] == []


@pytest.mark.parametrize(
    ("begin", "code"),
    [
        pytest.param(python_program, AS_A_PROGRAM, id="program"),
        pytest.param(fresh, AS_JUPYTER_DOES, id="jupyter", marks=pytest.mark.skipif(not LONG, reason="scripts/test --long runs it")),
    ],
)
def test_it_runs_and_names_the_bottleneck(tmp_path: Path, begin: Callable[..., subprocess.Popen[str]], code: str) -> None:
    """From top to bottom: the meter's sentence blames the stage that the notebook made slow."""
    environ = environment(tmp_path)
    process = begin(["-c", code, str(NOTEBOOK)], environ, tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        printed, errors = process.communicate(timeout=PROGRAM_S)
    finally:  # a sidecar waits a minute for its next user
        forebay(tmp_path, "stop")
    assert process.returncode == 0, errors[-3000:]
    assert re.search(r"^stall [\d.]+ % of \d+ s: \d+ % map", printed, re.MULTILINE), printed
