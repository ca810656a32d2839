"""How many hostile cases are refused, and how many planted secrets are found: counted by the security tests themselves.

    python benchmarks/refusals.py

Runs tests/security with pytest (as root more of them can run) and sums up what they noted; one line of JSON on stdout.
Exit code 1 if a case was not refused, a secret was found, or a test failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "proxy"), str(ROOT / "benchmarks")]

from figures import as_json, exactly, lines  # noqa: E402 -- after the path is known
from support.refusals import REPORT  # noqa: E402 -- after the path is known


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="nothing but the line of JSON on stdout, as always")
    parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "facts")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/security"]
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, REPORT: str(report)}, stdout=sys.stderr, check=False).returncode
        facts = [json.loads(line) for line in report.read_text().splitlines()]
    cases = [fact for fact in facts if "case" in fact]
    held = sum(fact["held"] for fact in cases)
    searches = [fact for fact in facts if "planted" in fact]
    planted, places, hits = (max((fact[name] for fact in searches), default=0) for name in ("planted", "places", "hits"))
    figures = [
        exactly("hostile cases refused", held, len(cases), "cases"),
        exactly(f"secrets found, of {planted} planted, in {places} places", hits, 0),
        exactly("security tests that failed", int(code != 0), 0),
    ]
    kinds = Counter(fact["case"].partition(":")[0] for fact in cases)
    print(", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())), *lines(figures), sep="\n", file=sys.stderr)
    print(as_json("refusals", "python benchmarks/refusals.py", figures))
    return int(not searches or not all(figure.ok for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
