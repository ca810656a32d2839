"""Coverage-guided fuzzing of everything that reads foreign input, for as long as you like.

    pip install atheris numpy
    python benchmarks/fuzz.py                       all targets, a minute each
    python benchmarks/fuzz.py target plan --seconds 3600

The targets, with their oracles and seeds, are those of ``tests/property/test_fuzz_targets.py``. A line a target on stderr, then one of
JSON on stdout: executions and crashes. The input of a crash is kept in ``--keep``. Exit code 1 if there was one.
atheris is 35 MB and made for the newest Pythons late, so it is no dependency of anything here.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "proxy"), str(ROOT / "loader"), str(ROOT / "benchmarks")]


def main() -> int:
    if sys.argv[1:2] == ["--one"]:  # the child: libFuzzer owns its process and reads its own flags
        return fuzz(sys.argv[2], sys.argv[3:])
    from support.fuzzing import TARGETS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-crashes"), help="where inputs that crash are written")
    options = parser.parse_args()
    from figures import Figure, as_json, exactly

    figures, crashes = [], 0
    for name in options.targets or TARGETS:
        executions, crashed = child(name, options.seconds, options.keep)
        crashes += crashed
        figures.append(Figure(f"executions of {name}", executions))
        print(f"{name:14} {executions:>10,} executions, {crashed} crashes", file=sys.stderr, flush=True)
    figures.append(exactly("crashes", crashes, 0))
    print(as_json("fuzz", f"python benchmarks/fuzz.py --seconds {options.seconds}", figures))
    return 1 if crashes else 0


def child(name: str, seconds: int, keep: Path) -> tuple[int, int]:
    """(executions, crashes) of one target in a process of its own; libFuzzer ends at the first crash."""
    from support.fuzzing import TARGETS

    keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(TARGETS[name].seeds):
            Path(corpus, f"seed{number}").write_bytes(seed)
        flags = [f"-max_total_time={seconds}", "-max_len=8192", "-timeout=20", f"-artifact_prefix={keep}/{name}-", "-print_final_stats=1"]
        command = [sys.executable, __file__, "--one", name, *flags, corpus]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    counted = re.findall(r"number_of_executed_units: (\d+)|^#(\d+)\s", done.stderr, re.MULTILINE)
    executions = max((int(one or other) for one, other in counted), default=0)
    if done.returncode and not executions:
        sys.exit(f"{name}: {done.stderr[-1000:] or done.stdout[-1000:]}")
    if done.returncode:
        print(done.stderr[-3000:], done.stdout[-3000:], sep="\n", file=sys.stderr)
    return executions, int(done.returncode != 0)


def fuzz(name: str, flags: list[str]) -> int:
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: pip install atheris")
    with atheris.instrument_imports(include=["forebay_proxy", "forebay_loader", "urllib.parse", "json", "shlex"]):
        from support.fuzzing import TARGETS
    atheris.Setup([sys.argv[0], *flags], TARGETS[name].run, enable_python_coverage=True)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
