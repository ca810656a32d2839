"""The demo, whose trainers need not import torch and webdataset: ``python demo_program.py ARGUMENTS``, in place of ``python -m demo``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.warm_python import python_program
from support.zygote import close_zygotes

from demo import __main__ as demo

__all__ = ["begin"]

_started = subprocess.Popen


def begin(command: Sequence[str], **how: Any) -> subprocess.Popen[Any]:
    """``subprocess.Popen``, but that a trainer of the demo is forked from a process that has imported what it needs."""
    if "demo.train" not in command:
        return _started(command, **how)
    return python_program(command[1:], how.pop("env"), Path.cwd(), **how)


if __name__ == "__main__":
    subprocess.Popen = begin  # type: ignore[misc,assignment]
    try:
        code = demo.main()
    finally:
        close_zygotes()
    sys.exit(code)
