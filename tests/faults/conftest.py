"""What the tests of faults share: a place on disk that is emptied again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of gigabytes, gone when the test ends; pytest keeps its own for three runs."""
    with tempfile.TemporaryDirectory(prefix="forebay-faults-") as directory:
        yield Path(directory)
