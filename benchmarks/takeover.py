"""Other people's data code, unchanged, under ``forebay run -- torchrun`` with two gloo ranks: does every worker read through the sidecar?

    python benchmarks/takeover.py                          with this interpreter's packages
    python benchmarks/takeover.py --python VENV/bin/python with those of another environment, which needs no Forebay

OpenCLIP and timm want an older webdataset and a torchvision whose wheel is for CUDA; of both only the Python parts are used:

    python -m venv VENV && VENV/bin/pip install torch numpy pillow webdataset==0.2.86 && VENV/bin/pip install --no-deps \\
        open_clip_torch==3.3.0 timm torchvision ftfy regex tqdm huggingface_hub safetensors wcwidth pandas python-dateutil six

Runs plain webdataset, OpenCLIP's ``get_wds_dataset`` and timm's ``ReaderWds`` where they can be imported, and says why where not. While a
program runs, ``/v1/plans`` of the sidecar is asked who has announced what; a worker that never shows there, a request that reaches the
origin past the sidecar, or a shard that is fetched twice is a failure (exit 1).
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import threading
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / part) for part in ("tests", "proxy", "loader")]
from support.fake_proxy import FakeServer  # noqa: E402
from support.other_python import clean_environment  # noqa: E402
from support.sidecar import Sidecar, running  # noqa: E402

HERE = Path(__file__).parent
PROGRAMS = {
    "plain": ("webdataset, torch", "import webdataset, torch, PIL"),
    "open_clip_data": ("open_clip_torch 3.3", "import shim, open_clip_train.data"),
    "timm_reader": ("timm", "import shim, timm.data.readers.reader_wds"),
}
SHARDS, SAMPLES, RANKS, WORKERS = 16, 12, 2, 2
RUN = f"import sys; sys.path[:0] = {sys.path[1:3]!r}; from forebay_proxy.cli.main import main; main()"


def shard(number: int, picture: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for sample in range(SAMPLES):
            for suffix, data in (("jpg", picture), ("cls", b"1"), ("txt", b"a photo"), ("json", b"{}")):
                entry = tarfile.TarInfo(f"{number:03d}{sample:03d}.{suffix}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return made.getvalue()


def photo() -> bytes:
    from PIL import Image  # noqa: PLC0415  # only where something is run

    made = io.BytesIO()
    Image.new("RGB", (64, 48), (9, 99, 199)).save(made, "JPEG")
    return made.getvalue()


class Watch:
    """Asks who has a plan, again and again, until left."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.workers: set[tuple[str, str]] = set()

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.02):
            for plan in json.loads(self._sidecar.ask("/v1/plans"))["plans"]:
                _, rank, worker, _ = plan["reader"].split("/")
                self.workers.add((rank, worker))


def importable(python: str, statement: str) -> str:
    """ "" where it is; else the last line of what went wrong."""
    done = subprocess.run([python, "-c", statement], cwd=HERE / "takeover_programs", capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def run(name: str, python: str, directory: Path) -> bool:
    with FakeServer().running() as origin, running(directory, "--cache-size", "200MB", allow=[origin.url]) as sidecar:
        picture = photo()
        for number in range(SHARDS):
            origin.put(f"/train-{number:03d}.tar", shard(number, picture))
        environ = clean_environment(directory / "run", FOREBAY_URL=sidecar.url, OMP_NUM_THREADS="1", WDS_SHUFFLE_SIZE="8")
        command = [
            sys.executable,
            "-P",
            "-c",
            RUN,
            "run",
            "--",
            python,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={RANKS}",
        ]
        urls = f"{origin.url}/train-{{000..{SHARDS - 1:03d}}}.tar"
        with Watch(sidecar) as watch:
            program = str(HERE / "takeover_programs" / f"{name}.py")
            done = subprocess.run(
                [*command, program, urls, str(WORKERS)], env=environ, capture_output=True, text=True, timeout=300, check=False
            )
        return _told(name, done, watch, origin)


def _told(name: str, done: subprocess.CompletedProcess[str], watch: Watch, origin: FakeServer) -> bool:
    tars = [request for request in origin.requests if request.target.endswith(".tar") and request.method == "GET"]
    past = [request for request in origin.requests if request.headers.get("User-Agent", "").startswith("curl")]
    wanted = {(str(rank), str(worker)) for rank in range(RANKS) for worker in range(WORKERS)}
    held = done.returncode == 0 and watch.workers >= wanted and not past and len(tars) <= SHARDS
    print(f"{name}: {'held' if held else 'FAILED'}; {done.stdout.strip().splitlines()[-1:] or done.returncode}")
    print(
        f"  workers with a plan (rank, worker): {sorted(watch.workers)}; origin: {len(tars)} GETs of {SHARDS} shards, {len(past)} by curl"
    )
    for line in done.stderr.splitlines():
        if line.startswith("forebay: "):
            print(f"  {line}")
    if not held:
        print(done.stderr[-3000:])
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter that training runs with")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)}; all of them when none is named")
    asked = parser.parse_args()
    if unknown := set(asked.programs) - set(PROGRAMS):
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    held = True
    for name in asked.programs or PROGRAMS:
        packages, statement = PROGRAMS[name]
        missing = importable(asked.python, statement)
        if missing:
            print(f"{name}: skipped, {packages} cannot be imported by {asked.python}: {missing}")
            continue
        with tempfile.TemporaryDirectory(prefix="forebay-takeover-") as directory:
            held = run(name, asked.python, Path(directory)) and held
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
