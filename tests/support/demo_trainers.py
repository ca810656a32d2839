"""Trainers of the demo, forked from a process that has imported torch and webdataset."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.warm_python import python_program

__all__ = ["begin"]

_started = subprocess.Popen


def begin(command: Sequence[str], **how: Any) -> subprocess.Popen[Any]:
    """``subprocess.Popen``, but that a trainer of the demo is forked from a process that has imported what it needs."""
    if "demo.train" not in command:
        return _started(command, **how)
    return python_program(command[1:], how.pop("env"), Path.cwd(), **how)
