"""A start takes a directory over: it waits for a predecessor that is ending, and for no other."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from forebay_proxy.app.service import serve
from forebay_proxy.app.shutdown import Shutdown
from forebay_proxy.config.settings import load
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.store.directory import Directory

pytestmark = pytest.mark.each_python


async def test_a_start_that_waits_for_its_predecessor_ends_when_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With 0: nothing was begun, and nothing went wrong."""
    running, ending = _starting_beside(tmp_path, leaving=True)
    with caplog.at_level(logging.INFO, "forebay"):
        async with asyncio.timeout(60):
            while "waiting for it" not in caplog.text:
                await asyncio.sleep(0.01)
            ending.asked.set()
            assert await running == 0


async def test_a_start_beside_one_that_stays_is_refused(tmp_path: Path) -> None:
    """Also when it is asked to end at that moment."""
    running, ending = _starting_beside(tmp_path, leaving=False)
    ending.asked.set()
    with pytest.raises(ConfigError, match="owned by pid"):
        await asyncio.wait_for(running, 60)


def _starting_beside(path: Path, *, leaving: bool) -> tuple[asyncio.Task[int], Shutdown]:
    """A sidecar that starts in a directory somebody owns."""
    run = path / "run"
    run.mkdir(mode=0o700)
    owner = Directory.open(path / "cache", "another")
    if leaving:
        owner.leaving()
    else:
        owner.announce("http://127.0.0.1:1", "i")
    environ = {"XDG_RUNTIME_DIR": str(run), "HOME": str(path)}
    settings = load({"port": 0, "cache_dir": path / "cache", "cache_size": "64MiB"}, environ, ())
    ending = Shutdown(0.0)
    running = asyncio.create_task(serve(settings, announce=lambda info: None, environ=environ, ending=ending))
    running.add_done_callback(lambda _: owner.close())
    return running, ending
