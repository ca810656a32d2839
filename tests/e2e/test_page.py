"""The status page of a real sidecar in a real browser, open all the while that the sidecar is stopped and another one takes its place."""

from __future__ import annotations

import signal
import urllib.error
from pathlib import Path

import pytest
from support.browser import browsing, needs_chromium
from support.fake_proxy import FakeServer
from support.sidecar import running

DERIVED = b'{"wall_s": 1, "stall_s": {}, "steps": 1, "derived": {"memo": {"hits": 3}}, "folders": {"memo": {"f@1": [4096, 2000000]}}}'


@needs_chromium
async def test_a_page_outlives_its_sidecar(place: Path, tmp_path: Path) -> None:
    """The copy button gives what is to be typed; a stopped sidecar and one that has gone are told of; the next one and caches are shown."""
    with FakeServer().running() as origin:
        async with browsing(tmp_path / "profile") as page:
            with running(place, "--cache-size", "100MB", allow=[origin.url]) as sidecar:
                with pytest.raises(urllib.error.HTTPError):
                    sidecar.ask(sidecar.proxied(f"{origin.url}/none.tar").removeprefix(sidecar.url))
                await page.go(sidecar.url)
                await page.do("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
                await page.do("Emulation.setFocusEmulationEnabled", enabled=True)  # only a page in front may use the clipboard
                line = await page.until("!byId('copy').hidden && byId('line').textContent")
                assert line == sidecar.status()["verdict"]["line"] != ""
                await page.do("Runtime.evaluate", expression="byId('copy').click()", userGesture=True)
                assert await page.until("byId('copy').textContent === 'Copied' && navigator.clipboard.readText()") == line
                sidecar.process.send_signal(signal.SIGSTOP)
                await page.until("document.body.classList.contains('lost') && byId('state').innerText.startsWith('no answer for')")
                sidecar.process.send_signal(signal.SIGCONT)
                await page.until("!document.body.classList.contains('lost')")
                port, before = sidecar.port, sidecar.status()["instance"]
            await page.until("document.body.classList.contains('lost')")
            with running(place, "--cache-size", "100MB", "--port", str(port), default_port=True) as sidecar:
                await page.until("!document.body.classList.contains('lost') && stream !== null")
                now = sidecar.status()["instance"]
                assert await page.value("instance") == now != before
                assert f"this sidecar began (pid {sidecar.process.pid}, " in str(await page.until("byId('events').innerText"))
                assert await page.value("byId('line').textContent") == sidecar.status()["verdict"]["line"] != line
                sidecar.ask("/v1/meter/train/0/main/7.0", DERIVED, "POST")
                assert "4.10 kB of 2.00 MB" in str(await page.until("byId('derived').innerText"))
