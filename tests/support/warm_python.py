"""Python programs that need not import torch and webdataset: forked from a process that has (``support.zygote``).

    program = python_program(["-c", CODE, "an argument"], environ, directory, stdout=subprocess.PIPE)    as a Popen of sys.executable
    with warm_workers(): ...    spawned workers and fork servers of multiprocessing begin like that, too

Importing them is two seconds of a processor, which most programs of tests would spend on nothing else. What is forked has imported nothing
of Forebay, and ends as a worker of multiprocessing does, without taking the interpreter down. So a test of imports, of what a start finds
there, or of the interpreter's end starts a program of its own; and of each kind of start, one test does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import util
from pathlib import Path
from subprocess import Popen
from typing import Any

from support.zygote import Zygote, kept_zygote

__all__ = ["python_program", "warm_workers"]

_IMPORTED = ("torch.utils.data", "torch.distributed", "webdataset", "numpy.random")
_WORKERS = ("from multiprocessing.spawn import", "from multiprocessing.forkserver import")


def _parent(environ: Mapping[str, str]) -> Zygote | None:
    parent = kept_zygote("python", *_IMPORTED)
    return parent if parent.imported_for(environ) else None


def python_program(arguments: Sequence[str], environ: Mapping[str, str], directory: Path, **streams: Any) -> Popen[Any]:
    """``python ARGUMENTS`` (-c CODE, -m MODULE or SCRIPT, and theirs) in ``directory``. ``streams``: stdin, stdout, stderr and text.

    AssertionError where ``environ`` has variables that torch or webdataset read when they are imported.
    """
    parent = _parent(environ)
    assert parent is not None, "in such an environment a program must be started"
    return parent.start(arguments, environ, directory, **streams)


@contextlib.contextmanager
def warm_workers() -> Iterator[None]:
    """Processes that multiprocessing starts from nothing have imported torch and webdataset, while this lasts."""
    started = util.spawnv_passfds

    def forked(path: Any, args: Sequence[Any], passfds: Sequence[int]) -> int:
        words = [os.fsdecode(each) for each in args[1:]]
        while words[0].startswith("-W") or words[0] == "-B":  # what is warned of, and what is written; -B where a variable says so, too
            del words[0]
        parent = _parent(os.environ) if words[0] == "-c" and words[1].startswith(_WORKERS) else None
        if parent is None:
            return int(started(path, args, passfds))  # its resource tracker; one within a rank of a test
        files = {each: each for each in (0, 1, 2, *map(int, passfds))}
        return parent.fork([words, [], []], os.environ, os.getcwd(), files)

    util.spawnv_passfds = forked  # type: ignore[attr-defined]
    try:
        yield
    finally:
        util.spawnv_passfds = started  # type: ignore[attr-defined]
