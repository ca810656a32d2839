"""``python -m demo.bytes_alone``: the demo without a trainer, in five seconds: what a sidecar serves, also of an origin that breaks off.

Needs Forebay and the standard library alone. So it tries a wheel that was just built, in an empty environment (``scripts/release``).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from demo.processes import OriginProcess, PartFailed, Sidecar
from forebay_proxy.wire.urls.shard_url import parse_origin_url, proxy_url

__all__ = ["main"]

CACHE_BYTES = 256_000_000
SHARDS, SAMPLES, SAMPLE_BYTES = 2, 40, 75_000
COMMAND_S = 60.0
TAKEN_OVER = """
import os, sys
import forebay_loader
hook = sys.modules["forebay_takeover_hook"].__file__
print(forebay_loader.__version__, os.path.relpath(hook, os.path.dirname(forebay_loader.__file__)))
"""


class Broken(Exception):
    """A promise was not kept; the message says which."""


def expect(kept: bool, promise: str) -> None:
    """Print the promise. Raises ``Broken`` where it was not kept."""
    if not kept:
        raise Broken(promise)
    print(f"  ok  {promise}", flush=True)


def expect_below(folder: Path) -> None:
    """Both packages are found there, not in sources that lie about."""
    for name in ("forebay_proxy", "forebay_loader"):
        spec = find_spec(name)
        place = Path(spec.origin) if spec is not None and spec.origin is not None else None
        expect(place is not None and place.resolve().is_relative_to(folder.resolve()), f"{name} lies below {folder}: {place}")


def command(*arguments: str, environment: dict[str, str] | None = None) -> str:
    """What ``forebay ARGUMENTS`` prints: the command beside this very Python. Raises ``Broken`` when it fails."""
    program = str(Path(sys.executable).with_name("forebay"))
    try:
        done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except OSError as error:
        raise Broken(f"{program}: {error.strerror}; pip makes it from the entry points of the wheel") from error
    if done.returncode:
        raise Broken(f"forebay {arguments[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def write_shards(directory: Path) -> dict[str, bytes]:
    """Tars of bytes that do not compress, by name."""
    rng, found = random.Random(7), {}
    for number in range(SHARDS):
        name = f"bytes-{number:04d}.tar"
        with tarfile.open(directory / name, "w", format=tarfile.USTAR_FORMAT) as tar:
            for sample in range(SAMPLES):
                member = tarfile.TarInfo(f"{number:04d}{sample:06d}.bin")
                member.size = SAMPLE_BYTES
                tar.addfile(member, io.BytesIO(rng.randbytes(SAMPLE_BYTES)))
        found[name] = (directory / name).read_bytes()
    os.link(directory / "bytes-0000.tar", directory / "cut.tar")
    return found


def get(url: str) -> bytes:
    # a handler without proxies: loopback must be reached directly whatever the environment says
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=COMMAND_S) as answer:
        return bytes(answer.read())


def read(sidecar: Sidecar, url: str) -> bytes:
    """The shard through the sidecar."""
    return get(proxy_url(sidecar.url, parse_origin_url(url)))


def serve(root: Path) -> None:
    (served := root / "shards").mkdir()
    shards = write_shards(served)
    total = sum(map(len, shards.values()))
    with (
        OriginProcess(served, latency_ms=5, rate_mb=0) as origin,
        Sidecar(root, CACHE_BYTES, [origin.base]) as sidecar,
    ):
        own = sidecar.environment()
        expect(get(sidecar.url + "/healthz") != b"", "/healthz answers")
        page = get(sidecar.url + "/").decode()
        linked = re.findall(r'(?:src|href)="(/[^"]+)"', page)
        answered = bool(linked) and all(get(sidecar.url + path) for path in linked)
        expect(answered, f"/ answers, and so does all that it links: {', '.join(linked)}")
        same = all(read(sidecar, origin.url(name)) == data for _ in range(2) for name, data in shards.items())
        expect(same, f"{SHARDS} shards, {total / 1e6:.1f} MB: the same bytes, twice")
        sent = origin.counts()["bytes"]
        expect(sent == total, f"the origin sent each byte once: {sent / 1e6:.1f} MB")
        origin.cut_once("cut.tar", total // SHARDS // 2)
        expect(read(sidecar, origin.url("cut.tar")) == shards["bytes-0000.tar"], "a body that breaks off in the middle: the same bytes")
        expect(origin.counts()["cuts"] == 1, "the origin did break it off")
        known = json.loads(command("status", "--json", environment=own))
        expect(known["forebay"] == version("forebay"), "forebay status answers, with the version of the sidecar")
        imported, hook = command("run", "--", sys.executable, "-c", TAKEN_OVER, environment=own).split()
        expect(imported == version("forebay"), "forebay run: the command imports forebay_loader, of the same version")
        expect(hook == "takeover/path/forebay_takeover_hook.py", f"forebay run: the command is taken over, by forebay_loader/{hook}")
        code = sidecar.stop()
        expect(code == 0, f"the sidecar was told to end: exit code {code}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 when all went as promised, 1 when something did not, 2 when it could not be shown."""
    parser = argparse.ArgumentParser(prog="python -m demo.bytes_alone", description="The demo without a trainer: Forebay alone.")
    parser.add_argument("--below", type=Path, metavar="FOLDER", help="Forebay must have been installed somewhere in this folder")
    parser.add_argument("--version", metavar="VERSION", help="and be this version")
    given = parser.parse_args(arguments)
    try:
        if given.below is not None:
            expect_below(given.below)
        installed = version("forebay")
        print(f"forebay {installed} on Python {platform.python_version()}", flush=True)
        expect(given.version in (None, installed), f"the version is {given.version or installed}")
        expect(installed in command("--version").split(), f"forebay --version says {installed}")
        with tempfile.TemporaryDirectory(prefix="forebay-demo-") as root:
            serve(Path(root))
    except (Broken, OSError, subprocess.TimeoutExpired) as error:
        print(f"  NOT as promised: {error}", flush=True)
        return 1
    except PartFailed as error:
        print(f"  not shown: {error}", flush=True)
        return 2
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(130))  # or our processes and directory would outlive us
    sys.exit(main())
