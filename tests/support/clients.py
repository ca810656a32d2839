"""The environment of other people's programs (``--group clients``), beside the one that runs the tests; and tests that need it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

__all__ = ["Read", "needs_clients", "reads_of", "told"]

CLIENTS = Path(f"{sys.prefix}-clients") / "bin" / "python"
_HERE = Path(__file__).parent

needs_clients = pytest.mark.skipif(not CLIENTS.exists(), reason=f"needs {CLIENTS}: scripts/test makes it")


class Read(NamedTuple):
    """What a program read, and the bytes that the sidecar fetched and sent meanwhile."""

    found: Any
    fetched: int
    sent: int


def reads_of(script: str, *arguments: str, environ: Mapping[str, str]) -> list[dict[str, Read]]:
    """What the programs of each round of ``script`` read."""
    return [{name: Read(*read) for name, read in found.items()} for found in told(script, *arguments, environ=environ)]


def told(script: str, *arguments: str, environ: Mapping[str, str]) -> Any:
    """What the program ``script`` beside this file prints as JSON on its last line; AssertionError with its stderr when it fails."""
    command = [str(CLIENTS), str(_HERE / script), *arguments]
    done = subprocess.run(command, env=dict(environ), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
