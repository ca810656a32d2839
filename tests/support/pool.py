"""Tests side by side, in the workers of pytest-xdist: who shares one, in what order, and how long each test took.

A worker is given groups. A group is a file, so that its tests follow one another as they are written and its module's fixtures are made
once; or all tests, of whatever file, that use a server of the session, so that it is started in one worker only; or the few files that
would take the machine for themselves, so that two of them never run at once. The tests of some long files need nothing of each other, and
each is a group of its own. The group that takes longest begins first, so that at the end no worker is left alone with it: by
``slowest.txt``.

    python tests/support/pool.py .cache/durations            the slowest tests of the stages, and the sums of the folders
    python tests/support/pool.py .cache/durations --listed   a new slowest.txt
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Measured", "grouped", "processor_s"]

SERVERS = ("rados_gateway", "moto")
# Each would keep the disk or all cores busy: gigabytes that are compared, dozens of processes.
HEAVY = frozenset({"faults/test_soak.py", "faults/test_kills.py", "e2e/test_many_shards.py", "faults/test_disk_faults.py"})
APART = frozenset({"e2e/test_clean_end.py", "e2e/test_equal_steps.py", "faults/test_starts.py", "loader/loading/test_equal_steps.py"})

SLOWEST = Path(__file__).with_name("slowest.txt")
LISTED_S = 5.0  # files that take less come in any order
SHOWN = 15


def grouped(items: list[pytest.Item], *, sort: bool) -> None:
    """Name the group of each; and put what takes longest first, the tests of a file as they are."""
    for item in items:
        if name := _group(item):
            item.add_marker(pytest.mark.xdist_group(name))
    if sort:
        costs = {file: float(cost) for line in SLOWEST.read_text().splitlines() if line[0] != "#" for cost, file in [line.split()]}
        groups = defaultdict[str, float](float)
        for file, name in {(_file(item), _group(item)) for item in items}:
            groups[name or file] += costs.get(file, 0)
        items.sort(key=lambda item: (-groups[_group(item) or _file(item)], -costs.get(_file(item), 0)))


def _file(item: pytest.Item) -> str:
    """Below tests/: some names are there twice."""
    return item.nodeid.partition("::")[0].removeprefix("tests/")


def _group(item: pytest.Item) -> str:
    if _file(item) in HEAVY:
        return "heavy"
    if servers := [name for name in SERVERS if name in getattr(item, "fixturenames", ())]:
        return servers[0]
    return "" if _file(item) in APART else item.nodeid.partition("::")[0]


def processor_s() -> float:
    """What this process has computed, with those of its children that have ended: a module's server counts where it ends."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


class Measured:
    """A plugin that writes how long each test took, with its fixtures: seconds, and of processors; when it ended, and where.

    It names what failed at once too: a run that is ended before its summary would not say what it was.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._began_s = file, time.time()
        self._tests: dict[str, dict[str, Any]] = defaultdict(lambda: {"s": 0.0, "processor_s": 0.0})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name, at, _ = report.nodeid.rpartition("@")
        test = self._tests[name if at and name.count("[") == name.count("]") else report.nodeid]  # the group is no part of the name
        test["s"] = round(test["s"] + report.duration, 3)
        test["processor_s"] = dict(report.user_properties).get("processor_s", 0.0)
        test["ended_s"], test["worker"] = round(report.stop - self._began_s, 1), getattr(report, "worker_id", "")
        if report.failed:
            print(f"\nfailed in its {report.when}: {report.nodeid}", file=sys.stderr, flush=True)

    def pytest_sessionfinish(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self._tests, indent=0))


def _folder(test: str) -> str:
    return "/".join(test.partition("::")[0].split("/")[:2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--listed", action="store_true")
    asked = parser.parse_args()
    stages: dict[str, dict[str, dict[str, Any]]] = {}
    for file in sorted(asked.folder.glob("*.json")):
        stages[file.stem] = json.loads(file.read_text())
    if asked.listed:
        files = Counter[str]()
        for test, took in stages.get("all", {}).items():
            files[test.partition("::")[0].removeprefix("tests/")] += took["s"]
        print("# Seconds that each file below tests/ takes, by tests/support/pool.py --listed: what takes longest begins first.")
        print("\n".join(f"{seconds:7.0f} {name}" for name, seconds in files.most_common() if seconds >= LISTED_S))
        return
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for stage, tests in stages.items():
        for test, took in tests.items():
            for at, value in enumerate((1, took["s"], took["processor_s"])):
                sums[stage, _folder(test)][at] += value
                sums[stage, "all of it"][at] += value
    print("-- tests, seconds of them, and of processors")
    for (stage, folder), (count, seconds, processors) in sorted(sums.items(), key=lambda item: (item[0][0], -item[1][1])):
        print(f"  {stage:24} {folder:20} {count:6.0f} {seconds:8.0f} {processors:8.0f}")
    print("-- the slowest tests")
    slowest = sorted(((took["s"], stage, test) for stage, tests in stages.items() for test, took in tests.items()), reverse=True)
    print("\n".join(f"  {seconds:6.1f} s  {test}  ({stage})" for seconds, stage, test in slowest[:SHOWN]))


if __name__ == "__main__":
    main()
