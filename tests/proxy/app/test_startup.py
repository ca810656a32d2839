"""A start takes a directory over: it waits for a predecessor that is ending, and for no other."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing
from pathlib import Path

import pytest

from forebay_proxy.app.service import serve
from forebay_proxy.app.shutdown import Shutdown
from forebay_proxy.config.settings import load
from forebay_proxy.store.directory import Directory

pytestmark = pytest.mark.each_python


async def test_a_start_that_waits_for_its_predecessor_ends_when_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With 0: nothing was begun, and nothing went wrong."""
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    owner = Directory.open(tmp_path / "cache", "another")
    owner.leaving()
    environ = {"XDG_RUNTIME_DIR": str(run), "HOME": str(tmp_path)}
    settings, ending = load({"port": 0, "cache_dir": tmp_path / "cache", "cache_size": "64MiB"}, environ), Shutdown(0.0)
    with closing(owner), caplog.at_level(logging.INFO, "forebay"):
        running = asyncio.create_task(serve(settings, announce=lambda info: None, environ=environ, ending=ending))
        async with asyncio.timeout(60):
            while "waiting for it" not in caplog.text:
                await asyncio.sleep(0.01)
            ending.asked.set()
            assert await running == 0
