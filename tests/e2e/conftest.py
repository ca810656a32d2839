"""What the end-to-end tests share: an origin, a place on disk that is emptied again, and the real S3."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.fresh_loader import fresh_loader  # noqa: F401
from support.s3_servers import rados_gateway  # noqa: F401
from support.scripted_origin import ScriptedOrigin


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fetches: a test of bad input after which an origin may have been asked all the same")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of gigabytes, gone when the test ends; pytest keeps its own for three runs."""
    with tempfile.TemporaryDirectory(prefix="forebay-e2e-") as directory:
        yield Path(directory)


@pytest.fixture
async def origin() -> AsyncIterator[ScriptedOrigin]:
    async with ScriptedOrigin() as made:
        yield made
