"""``forebay VERB`` as a process of its own: forked from one that has imported it where that makes no difference (``support.zygote``)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.zygote import zygote

__all__ = ["FOREBAY", "begin", "verb", "verb_process", "with_sidecar"]

# -P: a queue.py where the tests run must not shadow the library's.
FOREBAY = (sys.executable, "-P", "-m", "forebay_proxy")
VERB_S = 240.0
_SCRIPTS: dict[str, tuple[str, ...]] = {}  # those of ``with_sidecar``, and the program of each
_started = subprocess.Popen


def verb_process(
    environ: Mapping[str, str],
    *arguments: str,
    directory: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    program: Sequence[str] = (),
    real: bool = False,
) -> subprocess.Popen[bytes]:
    """``forebay ARGUMENTS``, begun; stdout and stderr are pipes.

    ``program``: what it starts as a sidecar, if not itself. ``real``: a program of its own, never forked, for a test of the start itself.
    """
    place = directory or Path.cwd()
    parent = None if real else zygote(environ)
    if parent is not None:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return parent.start(arguments, environ, place, stdin=stdin, program=program, **pipes)
    begun = [*with_sidecar(program), *arguments] if program else [*FOREBAY, *arguments]
    return subprocess.Popen(begun, env=environ, cwd=place, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def with_sidecar(program: Sequence[str]) -> list[str]:
    """Argv of a ``forebay`` that starts ``program`` as a sidecar."""
    seams = f"Seams(program={tuple(program)!r})"
    script = f"from forebay_proxy.cli.main import cli; from forebay_proxy.cli.options import Seams; cli(obj={seams}, prog_name='forebay')"
    _SCRIPTS[script] = tuple(program)
    return [sys.executable, "-c", script]


def begin(command: Sequence[str], **how: Any) -> subprocess.Popen[Any]:
    """``subprocess.Popen``, but that a command of ``with_sidecar`` is forked like a verb: for where the product starts one."""
    program = _SCRIPTS.get(command[2]) if len(command) > 2 else None
    parent = zygote(how["env"]) if program is not None and "env" in how else None
    if parent is None:
        return _started(command, **how)
    return parent.start(command[3:], how.pop("env"), Path.cwd(), program=program, **how)


def verb(
    environ: Mapping[str, str],
    *arguments: str,
    directory: Path | None = None,
    said: bytes | None = None,
    program: Sequence[str] = (),
    real: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    """``forebay ARGUMENTS`` to its end; ``said`` is its stdin."""
    stdin = subprocess.DEVNULL if said is None else subprocess.PIPE
    with verb_process(environ, *arguments, directory=directory, stdin=stdin, program=program, real=real) as process:
        try:
            out, err = process.communicate(said, timeout=VERB_S)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(["forebay", *arguments], process.returncode, out, err)
