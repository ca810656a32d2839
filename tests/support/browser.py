"""A real Chromium, spoken to by its own protocol: a page that streams never ends loading, so ``--dump-dom`` would wait for ever."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

__all__ = ["Page", "browsing", "needs_chromium"]

needs_chromium = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="needs chromium: scripts/test installs it when run as root on Debian"
)


class Page:
    """One page. ``complaints``: errors of its console, exceptions, and what its policy has refused."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self.complaints: list[str] = []

    async def listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            method = told.get("method", "")
            if (future := self._asked.pop(told.get("id", 0), None)) is not None:
                future.set_result(told)
            elif method in ("Log.entryAdded", "Runtime.exceptionThrown") or (
                method == "Runtime.consoleAPICalled" and told["params"]["type"] in ("error", "warning")
            ):
                self.complaints.append(json.dumps(told["params"])[:500])

    async def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._asked[number] = future = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        told = await asyncio.wait_for(future, 60)
        assert "error" not in told, told
        result: dict[str, Any] = told["result"]
        return result

    async def go(self, url: str) -> None:
        await self.do("Page.navigate", url=url)

    async def value(self, expression: str) -> Any:
        """What the expression is in the page."""
        told = await self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, expression: str, within_s: float = 60) -> Any:
        """Wait until the expression is true in the page."""
        async with asyncio.timeout(within_s):
            while True:
                with suppress(AssertionError):  # the page is just being exchanged
                    if found := await self.value(expression):
                        return found
                await asyncio.sleep(0.05)

    async def size(self, width: int, height: int, *, phone: bool = False) -> None:
        await self.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    async def scheme(self, name: str) -> None:
        """light or dark."""
        await self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    async def picture(self, *, whole: bool = False) -> bytes:
        """A PNG of what is seen, or of the whole page."""
        return base64.b64decode((await self.do("Page.captureScreenshot", format="png", captureBeyondViewport=whole))["data"])


@asynccontextmanager
async def browsing(profile: Path) -> AsyncIterator[Page]:
    """A page of a Chromium of its own, which ends with the ``async with``."""
    process = await asyncio.create_subprocess_exec(
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={profile}", "--no-first-run",
        "--remote-debugging-port=0", "--remote-allow-origins=*", "about:blank", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        told = profile / "DevToolsActivePort"
        async with asyncio.timeout(60):
            while not (told.exists() and "\n" in told.read_text()):
                assert process.returncode is None, "chromium ended"
                await asyncio.sleep(0.05)
        port = told.read_text().split("\n")[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                target = next(each for each in await answer.json() if each["type"] == "page")
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                listening = asyncio.create_task(page.listen())
                for domain in ("Page", "Runtime", "Log"):
                    await page.do(f"{domain}.enable")
                yield page
                listening.cancel()
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
