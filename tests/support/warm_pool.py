"""Workers of a pool that need not import what they collect: forked from a process that has (``support.zygote``).

To import all tests and what they use takes 8 s of a processor, and 20 more where they have to be compiled; to collect them once they are
imported, 3. What is forked collects by itself, as a worker does that was started, and shares the memory of all that was imported.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from execnet import gateway_io
from support.zygote import kept_zygote

__all__ = ["fork_workers"]


def fork_workers(config: pytest.Config) -> None:
    """From now on, also in the place of one that has crashed."""
    folder = config.invocation_params.dir
    kind = ("tests", str(folder), *config.args)
    home = {"HOME": os.environ["HOME"]} if "HOME" in os.environ else {}  # others of ours would find none there

    class Forked(gateway_io.Popen2IOMaster):
        def __init__(self, args: list[str], execmodel: Any) -> None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self.popen = kept_zygote(*kind, **home).start(["-c", args[-1]], os.environ, Path(folder), **pipes)
            gateway_io.Popen2IO.__init__(self, self.popen.stdin, self.popen.stdout, execmodel=execmodel)

    gateway_io.Popen2IOMaster = Forked
