"""The processes the demo starts are Python too: they find its modules the way scripts/demo lets them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import demo_trainers

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
    monkeypatch.setattr(subprocess, "Popen", demo_trainers.begin)
