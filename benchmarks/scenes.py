"""What a person sees when training waits: each trouble made in turn, and the page, the terminal, the log line and the alerts written down.

    python benchmarks/scenes.py [--into DIRECTORY] [--scene NAME …] [--seconds 30]

A real sidecar, a real training with two workers, an origin in this process that behaves as told (tests/support/troubles.py), a real
Chromium and a real Prometheus with the alerts as delivered. Of each scene a folder: page.png (1400x900), phone.png (390x844), top.txt
(``forebay top`` at 80x24), line.txt (the training's log line) and alert.txt (alerts whose expressions hold; most wait before they fire).
Exit code 1 where the verdict is not the one that the scene is made for.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("tests", "proxy", "loader")]

from support.browser import Page, browsing  # noqa: E402
from support.prometheus import Prometheus, running_prometheus  # noqa: E402
from support.sidecar import forebay  # noqa: E402
from support.troubles import TROUBLES, Scene, troubled  # noqa: E402

ALERTS = ROOT / "proxy" / "forebay_proxy" / "dashboard" / "alerts.yml"
SCENES = {
    "healthy": "healthy",
    "outage": "down refused",
    "throttling": "limit 503",
    "slow-disk": "disk",
    "slow-decode": "decode",
    "slow-user-code": "user code",
    "small-cache": "small cache",
}
SIZES = {"page.png": (1400, 900), "phone.png": (390, 844)}
LINE_S = 10.0  # three times as often as ordinarily


async def make(into: Path, names: list[str], seconds: float) -> bool:
    """All scenes; whether each verdict was the right one."""
    right = True
    with tempfile.TemporaryDirectory(prefix="forebay-scenes-") as directory:
        async with browsing(Path(directory, "profile")) as page:
            for name in names:
                place, folder = Path(directory, name), into / name
                place.mkdir()
                folder.mkdir(parents=True, exist_ok=True)
                trouble = TROUBLES[SCENES[name]]
                with (
                    troubled(trouble, place, line_s=LINE_S, forked=False) as scene,
                    running_prometheus(place, scene.sidecar.url.removeprefix("http://"), ALERTS) as prometheus,
                ):
                    await asyncio.sleep(max(seconds, 2 * trouble.seconds))
                    await write(scene, page, prometheus, folder)
                    cause = scene.status()["verdict"]["cause"]
                    await page.go("about:blank")
                print(f"{name}: {cause}")
                right = right and cause == trouble.cause
    return right


async def write(scene: Scene, page: Page, prometheus: Prometheus, folder: Path) -> None:
    """One scene's files."""
    held = sorted({f"{rule['name']} ({rule['state']})" for rule in prometheus.rules() if rule.get("state", "inactive") != "inactive"})
    (folder / "alert.txt").write_text("\n".join(held or ["no alert"]) + "\n")
    top = forebay(scene.sidecar.directory, "top", COLUMNS="80", LINES="24")
    (folder / "top.txt").write_text(top.stdout + top.stderr)
    (folder / "line.txt").write_text((scene.lines() or ["no line yet"])[-1] + "\n")
    await page.go(scene.sidecar.url)
    for name, size in SIZES.items():
        await page.size(*size, phone=size[0] < 500)
        await page.until("document.querySelectorAll('#readers tr').length > 0 && map.names.length > 0 && past.length > 1")
        await asyncio.sleep(2.5)  # readers have come to their places
        (folder / name).write_bytes(await page.picture())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path("scenes"), help="where the folders go")
    parser.add_argument("--scene", action="append", choices=SCENES, help="only these")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each goes on before it is looked at")
    given = parser.parse_args()
    sys.exit(not asyncio.run(make(given.into, given.scene or [*SCENES], given.seconds)))
