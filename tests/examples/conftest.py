"""The processes the demo starts are Python too: they find its modules the way scripts/demo lets them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.warm_python import python_program

_started = subprocess.Popen


def begin(command: Sequence[str], **how: Any) -> subprocess.Popen[Any]:
    """``subprocess.Popen``, but that a trainer of the demo is forked from a process that has imported what it needs."""
    if "demo.train" not in command:
        return _started(command, **how)
    return python_program(command[1:], how.pop("env"), Path.cwd(), **how)


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def importable() -> Iterator[None]:
    """Source roots and examples on PYTHONPATH, for child processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / part) for part in ("examples", "proxy", "loader")))
        yield


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers that have imported torch and webdataset."""
    monkeypatch.setattr(subprocess, "Popen", begin)
