"""docs/reliability.md: runs the scripts behind its figures, and writes its tables from what they said and from the code.

    python benchmarks/reliability.py                  write the page's tables from docs/reliability.json and the code
    python benchmarks/reliability.py --run            first run every script (about half an hour; nothing else should run)
    python benchmarks/reliability.py --run --quick    the same scripts with a tenth of the work, into a table on stdout: nothing is stored
    python benchmarks/reliability.py --run faults     only the named ones; the others' figures stay
    python benchmarks/reliability.py --check          exit 1 if the page does not say what the results and the code say

A script prints one line of JSON (see figures.py) and exits with 1 if a limit is broken; then so does this one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "proxy"), str(ROOT / "benchmarks")]

from forebay_proxy.app import shutdown  # noqa: E402
from forebay_proxy.cache.fetching import fetcher  # noqa: E402
from forebay_proxy.cache.versions import versions  # noqa: E402
from forebay_proxy.core.errors import ShardChanged  # noqa: E402
from forebay_proxy.core.exit_codes import MEANINGS  # noqa: E402
from forebay_proxy.origins.response import OriginResponse, error_of  # noqa: E402
from forebay_proxy.policy.plans import live_jobs  # noqa: E402

PAGE, RESULTS = ROOT / "docs" / "reliability.md", ROOT / "docs" / "reliability.json"
_HEADING = ("what", "measured", "held to")
STATUSES = (401, 403, 404, 408, 410, 412, 416, 429, 500, 502, 503, 504, 508)


@dataclass(frozen=True)
class Script:
    """One source of figures: its arguments in full, and with a tenth of the work. ``shown``: how those of the page begin."""

    name: str
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    shown: tuple[str, ...] = ("",)

    @property
    def path(self) -> Path:
        return ROOT / "benchmarks" / f"{self.name}.py"

    def run(self, *, quick: bool) -> dict[str, Any]:
        """What it said. Ends the program when that is no JSON."""
        arguments = self.quick if quick else self.arguments
        done = subprocess.run(
            [sys.executable, str(self.path), "--json", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
        )
        for text in (done.stdout, done.stdout.strip().rpartition("\n")[2]):  # one document, or the last line of more
            with suppress(ValueError):
                return self.understood(json.loads(text))
        raise SystemExit(f"{self.name}: ended with {done.returncode} and said no JSON: {done.stdout[-300:]!r}")

    def understood(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """In the shape that is stored; a limit that is a number is the most that is allowed."""
        command = said.get("command") or f"python benchmarks/{self.name}.py"
        return {"name": self.name, "command": command, "figures": [_understood(figure) for figure in said["figures"]]}


def _understood(figure: Mapping[str, Any]) -> dict[str, Any]:
    limit, ok = figure.get("limit", ""), bool(figure.get("ok", True))
    if isinstance(limit, int | float):
        limit, ok = f"{'at most ' if limit else ''}{limit:g}", figure["value"] <= limit
    return {"what": figure["what"], "value": figure["value"], "unit": figure.get("unit", ""), "limit": limit, "ok": ok}


SOURCES = (
    Script("faults", ("--reads", "10000"), ("--reads", "1000")),
    Script("crashes", ("--kills", "100"), ("--kills", "10")),
    Script("disk", quick=("--case", "bound-ext4"), shown=("client errors in", "bytes over", "failed")),
    Script("refusals"),
    Script("soak", ("--minutes", "15"), ("--minutes", "1", "--rss-limit", "100000", "--lag-limit", "1000")),
)
_SHOWN = {script.name: script.shown for script in SOURCES}
# Figures that only somebody who looks for a fault needs: they are in the results, not on the page.
_HIDDEN = {
    "seconds", "segments kept, most", "disk looked at", "its least-squares value", "its standard error", "most threads",
    "/healthz, 99 of 100", "a sleeping thread's lag beside it, 99 of 100", "exit code", "of them during a start", "most descriptors",
    "minutes", "segments kept, median", "start, median", "origin bytes", "/healthz, slowest", "bytes compared", "shards read",
    "epochs of the training loop", "restarts of the sidecar meanwhile", "reads that nobody can serve", "readers that died in a body",
    "reader processes stopped by SIGSTOP", "kinds of trouble",
}  # fmt: skip
# The scripts' words where the page has plainer ones. Figures with the same words share them in a row, if they share value and limit.
_BYTES, _SAMPLES, _LEFT = "wrong, missing or miscounted bytes", "lost, repeated or wrong samples", "leaked descriptors or tasks"
_WORDS = {
    "reads through an origin that lies": "reads through a faulty origin", "reads for which a right answer exists": "reads that can succeed",
    "of them not an error": "reads that must fail, but did not", "kill -9": "kills (`kill -9`)",
    "wrong bytes": _BYTES, "false claims": _BYTES, "books wrong": _BYTES,
    "starts that found segments": "restarts that found segments", "start, longest": "longest restart", "starts failed": "failed starts",
    "leaked files": "files left over", "over bound": "bytes over the cache size",
    "samples lost": _SAMPLES, "samples twice": _SAMPLES, "samples wrong": _SAMPLES,
    "descriptors left over": _LEFT, "tasks left over": _LEFT,
    "wrong bytes: places": "wrong bytes", "reads that came whole": "complete reads",
    "reads whose version left meanwhile, or has no name": "reads of a shard that was replaced, or has no version",
    "connections to where a redirect must not lead": "forbidden redirects followed", "faults in the sidecar's log": "faults in the log",
    "memory's slope, second half": "growth of memory, second half", "event loop lag, 99 of 100": "event loop lag, 99th percentile",
    "bytes over the disk's bound": "bytes over the cache size",
    "bytes over the disk bound, all samples": "bytes over the cache size",
}  # fmt: skip


# The page


def tables(results: Mapping[str, Any]) -> dict[str, str]:
    """What stands between each pair of markers."""
    return {
        "figures": f"{_figures(results)}\n\n{_where(results)}",
        "statuses": _table(("the origin answers", "asked again", "the client gets"), _status_rows()),
        "limits": _table(("what", "value"), _limit_rows()),
        "exit codes": _table(("code", "meaning"), [(str(int(code)), meaning) for code, meaning in MEANINGS.items()]),
    }


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heading, ["---"] * len(heading), *rows))


def _where(results: Mapping[str, Any]) -> str:
    return f"Measured {results['measured']} on {results['machine']}." if results["results"] else "Not measured yet."


def _figures(results: Mapping[str, Any]) -> str:
    """One table: each script's rows below its command."""
    rows = [row for result in results["results"] for row in ((f"`{result['command']}`", "", ""), *_figure_rows(result))]
    return _table(_HEADING, rows)


def _figure_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Neighbours that measured the same under the same limit share a row."""
    rows: list[tuple[str, ...]] = []
    for figure in result["figures"]:
        if figure["what"] in _HIDDEN or not figure["what"].startswith(_SHOWN.get(result["name"], ("",))):
            continue
        what = _WORDS.get(figure["what"], figure["what"])
        said = (f"{number(figure['value'])} {figure['unit']}".strip(), _limit(figure["limit"]))
        if rows and said[1] and rows[-1][1:] == said:
            what = "; ".join(dict.fromkeys([*rows.pop()[0].split("; "), what]))  # the same words for two figures: once
        rows.append((what, *said))
    return rows


def _limit(limit: str) -> str:
    """Rounded as a person writes it; ``at most 0`` is 0."""
    head, _, last = limit.rpartition(" ")
    with suppress(ValueError):
        return number(float(last)) if head == "at most" and not float(last) else f"{head} {number(float(last))}".strip()
    return limit


def number(value: float) -> str:
    """As a person writes it: whole numbers whole, others with three digits that say something; what is not all is never rounded to all."""
    if 99 < value < 100:
        return f"{int(value * 100) / 100:.2f}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def _status_rows() -> list[tuple[str, ...]]:
    """Statuses with the same answers share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for status in STATUSES:
        error = error_of("s3://b/k", OriginResponse(status, {}, b""), pinned=True)
        if isinstance(error, ShardChanged):  # another version may well be there tomorrow: for its readers, not for this fetch
            again = f"up to {fetcher.DENIALS} times"
        else:
            again = "until the budget is spent" if error.retryable else "never"
        gets = "the same" if again == "never" and error.status == status else f"{error.status} {error.title}"
        rows.setdefault((again, gets), []).append(str(status))
    return [(", ".join(statuses), *answers) for answers, statuses in rows.items()]


def _limit_rows() -> list[tuple[str, ...]]:
    """Those that no setting changes."""
    return [
        ("retry budget for a host that has not answered since the start", f"{fetcher.UNANSWERED_BUDGET_S:g} s"),
        ("retry budget for any other host while no reader waits", f"{fetcher.UNWANTED_BUDGET_S:g} s"),
        (
            "a shard that is read without a job is compared again after",
            f"{versions.NO_JOB_S:g} s; sooner if its folder was not read for {live_jobs.PAUSE_S:g} s",
        ),
        ("longest closing before the end is forced", f"{shutdown.CLOSE_S:g} s"),
    ]


def written(page: str, results: Mapping[str, Any]) -> str:
    """The page with its tables made anew. Raises ``ValueError`` for a marker that is missing."""
    for name, table in tables(results).items():
        begin, end = f"<!-- {name}: made by benchmarks/reliability.py -->", f"<!-- {name}: end -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise ValueError(f"the page needs exactly one pair of markers for {name!r}")
        head, _, rest = page.partition(begin)
        page = f"{head}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
    return page


# Running


def run(names: Sequence[str], *, quick: bool, said: Callable[[str], None]) -> list[dict[str, Any]]:
    """What each script said, in the order of the page."""
    found = []
    for source in SOURCES:
        if names and source.name not in names:
            continue
        said(f"{source.name} ...")
        found.append(source.run(quick=quick))
    return found


def merged(results: Mapping[str, Any], fresh: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``fresh`` in place of what was there of the same name; in the order of the page."""
    by_name = {result["name"]: result for result in (*results.get("results", ()), *fresh)}
    order = [source.name for source in SOURCES]
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}"
    return {
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"), "machine": machine,
        "results": [by_name[name] for name in order if name in by_name],
    }  # fmt: skip


def holds(results: Sequence[Mapping[str, Any]]) -> bool:
    broken = [f"{result['name']}: {figure['what']}" for result in results for figure in result["figures"] if not figure["ok"]]
    for line in broken:
        print(f"broken: {line}", file=sys.stderr)
    return not broken


def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {"results": []}
    return found


def check() -> int:
    """1 if the page differs from what would be written."""
    page = PAGE.read_text("utf-8")
    same = written(page, stored()) == page
    if not same:
        print(f"{PAGE.name} does not say what {RESULTS.name} and the code say: run benchmarks/reliability.py", file=sys.stderr)
    return 0 if same else 1


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", nargs="*", metavar="NAME", choices=[source.name for source in SOURCES], default=None)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(argv)
    if options.check:
        return check()
    fresh = [] if options.run is None else run(options.run, quick=options.quick, said=lambda line: print(line, file=sys.stderr, flush=True))
    if options.quick:
        print(_figures({"results": fresh}))
        return 0 if holds(fresh) else 1
    results = merged(stored(), fresh) if fresh else stored()
    if fresh:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    PAGE.write_text(written(PAGE.read_text("utf-8"), results), "utf-8")
    return 0 if holds(results["results"]) else 1


if __name__ == "__main__":
    sys.exit(main())
