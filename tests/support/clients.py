"""The environment of other people's programs (``--group clients``), beside the one that runs the tests; and tests that need it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

__all__ = ["CLIENTS", "needs_clients", "told"]

CLIENTS = Path(f"{sys.prefix}-clients") / "bin" / "python"
_HERE = Path(__file__).parent

needs_clients = pytest.mark.skipif(not CLIENTS.exists(), reason=f"needs {CLIENTS}: scripts/test makes it")


def told(script: str, *arguments: str, environ: Mapping[str, str]) -> Any:
    """What the program ``script`` beside this file prints as JSON on its last line; AssertionError with its stderr when it fails."""
    command = [str(CLIENTS), str(_HERE / script), *arguments]
    done = subprocess.run(command, env=dict(environ), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
