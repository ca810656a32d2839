"""``forebay stage`` beside what else does the job: read shards of pictures over HTTP, make them smaller, write other shards.

    python benchmarks/stage.py [--json] [--quick] [--rounds 3] [--pictures 2000] [--img2dataset PYTHON]

| way | what it is |
|---|---|
| loop | a plain webdataset loop in one process: ``WebDataset``, Pillow, ``ShardWriter``; nothing is checked and nothing can go on |
| stage 1, stage N | ``forebay stage --map resize,side=256,quality=90 --samples-per-shard …`` with one process, and one a core |
| img2dataset | its ``download`` of the same pictures, a URL each, one process a core: it reads no shards, so it cannot re-shard them |

All read from one nginx on loopback and write to a folder, which is looked through: a way that lacks a picture, or has one of another size,
ends the run. The clock runs from the start of the program to its end, and the processor's with it. Memory is the highest sum of what the
processes of a way hold (PSS, looked at every 50 ms); of ``forebay stage`` with the sidecar that it reads through, which is new in each
round. Rounds take turns; medians are told. Only the ratios mean something elsewhere. ``--img2dataset`` is a Python of an environment with
``pip install img2dataset==1.47.0 'setuptools<81'``; it wants older packages than ours. Exit code 1 where a limit is broken.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy
from figures import Figure, as_json, at_least, lines
from PIL import Image
from rivals import Server, family, nginx_origin

ROOT = Path(__file__).resolve().parents[1]
PATHS = [str(ROOT / name) for name in ("proxy", "loader", "stage", "tests")]
sys.path[:0] = PATHS

from support.sidecar import running  # noqa: E402

IN_SHARD, OUT_SHARD = 250, 400
WIDTH, HEIGHT, SIDE, QUALITY = 640, 480, 256, 90
KINDS = 16  # of different pictures; each is in the set many times
CORES = len(os.sched_getaffinity(0))
LEAST_LINEAR = 0.8  # of two workers beside one, where there are cores for them, the sidecar and nginx

LOOP = f"""
import io, sys
import webdataset as wds
from PIL import Image
out, *urls = sys.argv[1:]
with wds.ShardWriter(out + "/%05d.tar", maxcount={OUT_SHARD}, verbose=0) as writer:
    for sample in wds.WebDataset(["pipe:curl -sf " + url for url in urls], shardshuffle=False):
        image = Image.open(io.BytesIO(sample["jpg"]))
        factor = {SIDE} / min(image.size)
        room = io.BytesIO()
        image.resize((round(image.width * factor), round(image.height * factor)), Image.LANCZOS).save(room, "JPEG", quality={QUALITY})
        sample["jpg"] = room.getvalue()
        writer.write(sample)
"""
RIVAL = f"""
import sys
from img2dataset import download
if __name__ == "__main__":
    out, urls = sys.argv[1:]
    download(url_list=urls, output_folder=out, output_format="webdataset", number_sample_per_shard={OUT_SHARD}, processes_count={CORES},
             thread_count=16, image_size={SIDE}, resize_mode="keep_ratio", resize_only_if_bigger=True, encode_quality={QUALITY})
"""


@dataclass(frozen=True)
class Took:
    seconds: float
    cpu_s: float
    bytes: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="500 pictures, one round: whether it is right, not how fast")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--img2dataset", metavar="PYTHON", default="", help="a Python that has img2dataset")
    asked = parser.parse_args()
    pictures, rounds = (500, 1) if asked.quick else (asked.pictures, asked.rounds)
    found: dict[str, list[Took]] = {}
    with tempfile.TemporaryDirectory(prefix="forebay-stage-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        names = write_set(folder / "files", pictures, singles=bool(asked.img2dataset))
        with nginx_origin(folder / "nginx", folder / "files") as origin:
            for number in range(rounds):
                for way, took in one_round(folder / f"round-{number}", origin.url, names, pictures, asked.img2dataset):
                    found.setdefault(way, []).append(took)
    figures = list(told(found, pictures))
    print(as_json("stage", " ".join(sys.argv), figures) if asked.json else "\n".join(lines(figures)))
    if not asked.img2dataset:
        print("img2dataset was not measured: --img2dataset PYTHON names an environment that has it", file=sys.stderr)
    return 0 if all(figure.ok for figure in figures) else 1


def told(found: dict[str, list[Took]], pictures: int) -> Iterator[Figure]:
    def median(way: str, what: str) -> float:
        return statistics.median(getattr(took, what) for took in found[way])

    rates = {way: pictures / median(way, "seconds") for way in found}
    for way in found:
        yield Figure(f"{way}: samples", rates[way], "/s")
        yield Figure("  processor", median(way, "cpu_s") / pictures * 1000, "ms each")
        yield Figure("  peak memory", median(way, "bytes") / 2**20, "MiB")
        if way != "loop":
            yield Figure("  samples a second, times the loop's", rates[way] / rates["loop"], "x")
            yield Figure("  processor, times the loop's", median(way, "cpu_s") / median("loop", "cpu_s"), "x")
            yield Figure("  peak memory, times the loop's", median(way, "bytes") / median("loop", "bytes"), "x")
    several = f"stage {min(2, CORES)}"
    linear = rates[several] / rates["stage 1"] / min(2, CORES)
    what = f"{several} beside stage 1, of linear ({CORES} cores)"
    yield at_least(what, linear, LEAST_LINEAR, "x") if CORES >= 4 else Figure(what, linear, "x")


def one_round(folder: Path, origin: str, names: Sequence[str], pictures: int, rival: str) -> Iterator[tuple[str, Took]]:
    urls = [f"{origin}/{name}" for name in names]
    yield "loop", watched([sys.executable, "-c", LOOP, made(folder / "loop"), *urls])
    check(folder / "loop", pictures)
    for processes in sorted({1, min(2, CORES), CORES}):
        out = folder / f"stage-{processes}"
        yield f"stage {processes}", staged(folder / f"sidecar-{processes}", origin, urls, out, processes)
        check(out, pictures)
    if rival:
        listed = folder / "urls.txt"
        listed.write_text("".join(f"{origin}/{number:06d}.jpg\n" for number in range(pictures)))
        yield "img2dataset", watched([rival, "-c", RIVAL, made(folder / "img2dataset"), str(listed)])
        check(folder / "img2dataset", pictures)


def staged(work: Path, origin: str, urls: Sequence[str], out: Path, processes: int) -> Took:
    work.mkdir(parents=True)
    steps = ["--map", f"resize,side={SIDE},quality={QUALITY}", "--samples-per-shard", str(OUT_SHARD)]
    with running(work, "--socket", str(work / "s"), "--cache-size", "4GB", allow=[origin]) as sidecar:
        command = [sys.executable, "-m", "forebay_proxy", "stage", *urls, str(out), *steps, "--processes", str(processes), "--quiet"]
        return watched([*command, "--url", sidecar.url], beside=Server("sidecar", sidecar.url, sidecar.process.pid))


def watched(command: Sequence[str], beside: Server | None = None) -> Took:
    """What ``command`` takes, with all processes that it starts; ``beside`` is a server that counts too."""
    environ = {**os.environ, "PYTHONPATH": ":".join(PATHS), "NO_ALBUMENTATIONS_UPDATE": "1"}  # one of the rival's libraries asks the net
    began, began_cpu_s = perf_counter(), cpu_s(beside)
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, stdout=said, stderr=said, stdin=subprocess.DEVNULL, env=environ) as child,
    ):
        ended, peaks = threading.Event(), [0]

        def look() -> None:
            while not ended.wait(0.05):
                peaks.append(sum(map(held, [*family_of(child.pid), *family_of(beside.pid if beside else 0)])))

        looking = threading.Thread(target=look)
        looking.start()
        code = child.wait()
        seconds = perf_counter() - began
        ended.set()
        looking.join()
        if code:
            said.seek(0)
            raise RuntimeError(f"{' '.join(command[:6])} … ended with {code}: {said.read()[-2000:].decode(errors='replace')}")
    return Took(seconds, cpu_s(beside) - began_cpu_s, max(peaks))


def cpu_s(beside: Server | None) -> float:
    """Of the processor, by all programs that have ended, and by ``beside``."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + (beside.cpu_s() if beside else 0.0)


def family_of(pid: int) -> list[int]:
    try:
        return family(pid) if pid else []
    except OSError:  # one of them has just ended
        return []


def held(pid: int) -> int:
    """Bytes of memory; what processes share counts in parts."""
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def check(folder: Path, pictures: int) -> None:
    """Every picture is there, and its shorter side is right. Raises ``RuntimeError``."""
    count = 0
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for entry in tar:
                if entry.name.endswith(".jpg"):
                    with Image.open(tar.extractfile(entry)) as image:
                        if min(image.size) != SIDE:
                            raise RuntimeError(f"{entry.name} in {path} has {image.size}")
                    count += 1
    if count != pictures:
        raise RuntimeError(f"{folder} has {count} pictures of {pictures}")


def made(folder: Path) -> str:
    folder.mkdir(parents=True)
    return str(folder)


def write_set(folder: Path, pictures: int, *, singles: bool) -> list[str]:
    """Shards of pictures with a caption each, and with ``singles`` every picture as a file too. The names of the shards."""
    folder.mkdir()
    drawn = [picture(seed) for seed in range(KINDS)]
    names = []
    for first in range(0, pictures, IN_SHARD):
        names.append(f"{first // IN_SHARD:05d}.tar")
        with tarfile.open(folder / names[-1], "w") as tar:
            for number in range(first, min(first + IN_SHARD, pictures)):
                data = drawn[number % KINDS]
                for kind, content in (("jpg", data), ("json", json.dumps({"number": number}).encode())):
                    entry = tarfile.TarInfo(f"{number:06d}.{kind}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))
                if singles:
                    (folder / f"{number:06d}.jpg").write_bytes(data)
    return names


def picture(seed: int) -> bytes:
    """A JPEG of some 80 KB: a coarse random picture, made large, with some noise, so that it costs what a photograph does."""
    draw = numpy.random.default_rng(seed)
    coarse = Image.fromarray(draw.integers(0, 256, (HEIGHT // 16, WIDTH // 16, 3), dtype=numpy.uint8))
    noisy = numpy.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)).astype(int) + draw.integers(-8, 9, (HEIGHT, WIDTH, 3))
    room = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(numpy.uint8)).save(room, "JPEG", quality=QUALITY)
    return room.getvalue()


if __name__ == "__main__":
    raise SystemExit(main())
