"""A disk that is full, small, slow, hung, failing, read-only or gone: does the bound hold, does any client notice?

    python benchmarks/disk.py [--json] [--case NAME ...] [--directory DIR]

Every case is a real sidecar over nginx with readers of all kinds before, during and after the trouble; each compares every byte. The disk
is sampled from outside every 50 ms. Needs root (file systems of its own, in mount namespaces), nginx and gcc; what a machine cannot do is
named and left out.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("tests", "proxy", "benchmarks")]

import pytest  # noqa: E402
from figures import Figure, as_json, at_most, exactly, lines  # noqa: E402
from support import nginx as servers  # noqa: E402
from support.disk_cases import CASES, Case, make_shards, play  # noqa: E402
from support.disk_sampler import sampling  # noqa: E402
from support.disks import file_system, inside  # noqa: E402
from support.nginx import Nginx  # noqa: E402
from support.readers import make_shard, many, read  # noqa: E402
from support.sidecar import running  # noqa: E402

LIMIT = 100_000_000
SIZES = [1, 5_000, 3_000_000, 9_000_001, 20_000_000]
SHARDS = 40
KINDS = {"ext4": "256m", "xfs": "384m", "ext2": "256m", "tmpfs": "256m", "overlay": "256m", "ramfs": "256m"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument("--case", action="append", help="only these cases")
    parser.add_argument("--directory", type=Path, help="where to work (default: the temporary directory)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forebay-disk-", dir=arguments.directory) as directory:
        report = Report(arguments.json)
        with redirect_stdout(sys.stderr if arguments.json else sys.stdout), _origin(Path(directory)) as (origin, files):
            _bounds(Path(directory), origin, files, report, arguments.case)
            _cases(Path(directory), origin, files, report, arguments.case)
        report.end()
    return int(report.failed)


class Report:
    """What was found: a line each as it comes, or one object at the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._over = self._errors = self._reads = self._cases = 0
        self._figures: list[Figure] = []

    @property
    def failed(self) -> bool:
        return not all(figure.ok for figure in self._figures)

    def bound(self, what: str, peak: int, limit: int) -> None:
        self._over += max(0, peak - limit)
        self._add(at_most(f"highest use, {what}", peak, limit, "bytes"))

    def case(self, what: str, reads: int, errors: int) -> None:
        self._cases, self._reads, self._errors = self._cases + 1, self._reads + reads, self._errors + errors
        self._add(exactly(f"client errors of {reads} reads, {what}", errors, 0))

    def left_out(self, what: str, why: str) -> None:
        self._add(Figure(f"left out: {what}: {why}", 1))

    def broken(self, what: str, text: str) -> None:
        print(text, file=sys.stderr)
        self._add(exactly(f"failed: {what}", 1, 0))

    def _add(self, figure: Figure) -> None:
        self._figures.append(figure)
        if not self._as_json:
            print(*lines([figure]), flush=True)

    def end(self) -> None:
        self._add(exactly(f"client errors in {self._reads} reads on {self._cases} kinds of disk and disk trouble", self._errors, 0))
        self._add(exactly("bytes over the disk bound, all samples", self._over, 0, "bytes"))
        if self._as_json:
            print(as_json("disk", "python benchmarks/disk.py", self._figures))


@contextmanager
def _origin(place: Path) -> Iterator[tuple[Nginx, Path]]:
    files = make_shards(place / "files")
    for number in range(SHARDS):
        make_shard(files / f"b{number}.tar", SIZES[number % len(SIZES)], number)
    with servers.nginx(place / "nginx", files, plain="", without_length=servers.NO_LENGTH) as origin:
        yield origin, files


def _bounds(place: Path, origin: Nginx, files: Path, report: Report, only: list[str] | None) -> None:
    """Nine times the limit through it, half of that from an origin that does not say how long its shards are."""
    for kind, size in KINDS.items():
        with _one(report, f"bound-{kind}", place, only) as folder:
            if folder is None:
                continue
            how = file_system(folder, kind, size)
            allow = [origin.base(name) for name in ("plain", "without_length")]
            with running(folder, "--cache-size", str(LIMIT), allow=allow, **how) as sidecar:
                with sampling(inside(sidecar), sidecar.process.pid) as seen:
                    for name in ("plain", "without_length"):
                        _pour(sidecar.proxied, partial(origin.url, name=name), files)
                errors = int(sidecar.status()["errors"])
            report.bound(f"on {kind} ({seen.samples} samples)", seen.peak_bytes, LIMIT)
            report.case(f"on {kind}", 2 * SHARDS * 2, errors)


def _pour(proxied: Callable[[str], str], url: Callable[[str], str], files: Path) -> None:
    work = [partial(read, proxied(url(f"b{number}.tar")), files / f"b{number}.tar") for number in range(SHARDS)] * 2
    random.Random(1).shuffle(work)
    assert all(got.whole for got in many(16, work))


def _cases(place: Path, origin: Nginx, files: Path, report: Report, only: list[str] | None) -> None:
    for case in CASES:
        with _one(report, case.name, place, only) as folder:
            if folder is not None:
                _case(case, folder, origin, files, report)


def _case(case: Case, folder: Path, origin: Nginx, files: Path, report: Report) -> None:
    told = play(case, folder, files, origin)
    report.case(f"{case.name} ({' -> '.join(told.states)})", told.reads, told.client_errors)
    report.bound(case.name, told.seen.peak_bytes, case.limit)


@contextmanager
def _one(report: Report, name: str, place: Path, only: list[str] | None) -> Iterator[Path | None]:
    """A folder for one case; None: it is not asked for. What fails is reported, and the others go on."""
    if only and name not in only:
        yield None
        return
    folder = place / name
    folder.mkdir()
    try:
        yield folder
    except pytest.skip.Exception as skipped:
        report.left_out(name, str(skipped))
    except Exception:
        report.broken(name, traceback.format_exc())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
