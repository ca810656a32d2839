"""A training environment of its own, without Forebay: what webdataset and torch need is linked into it, nothing is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from forebay_proxy.cli.run.takeover import takeover_folder

__all__ = ["TAKEOVER", "answer_of", "clean_environment", "other_python"]

_FOUND = takeover_folder()
assert _FOUND is not None
TAKEOVER = _FOUND  # what ``forebay run`` puts on PYTHONPATH


def other_python(directory: Path, without: tuple[str, ...] = ()) -> str:
    """The interpreter of a new virtual environment under ``directory`` that has everything of this one but Forebay and ``without``."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    (packages,) = directory.glob("lib/python3*/site-packages")
    for place in [place for place in map(Path, sys.path) if place.name == packages.name and place.is_dir()]:
        for entry in place.iterdir():
            link = packages / entry.name
            left_out = "forebay" in entry.name.lower() or entry.suffix == ".pth" or entry.name in without  # a .pth may name the sources
            if not left_out and not link.is_symlink():  # this environment may be another one with something else in front
                link.symlink_to(entry)
    return str(directory / "bin" / "python")


def clean_environment(run: Path, **variables: str) -> dict[str, str]:
    """This environment without a trace of Forebay, with a run directory of its own."""
    run.mkdir(mode=0o700, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_") and name != "PYTHONPATH"}
    return {**kept, "XDG_RUNTIME_DIR": str(run), **variables}


def answer_of(python: str, code: str, environ: dict[str, str], *flags: str) -> object:
    """What ``code`` prints as JSON on the last line of its stdout; AssertionError with its stderr when it fails."""
    done = subprocess.run([python, *flags, "-c", code], env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
