"""A sidecar for every process that needs one: the one that was named, else the node's, else a new one; and kept alive for as long as it is
needed.

Whether a sidecar that runs here may be joined, and how a new one is set up, takes the sidecar's settings, which training's interpreter may
be too old or too bare to read. So it is done in the sidecar's own environment, by ``forebay launch``: that joins or starts one under the
run directory's lock, holds it, says in one line where it is, and ends once our own hold is taken. There is no moment between in which no
process holds it.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Mapping, Optional, Sequence, Tuple

from forebay_proxy.wire.protocol.keepalive import KeepAlive, KeepAliveRefused, LaunchError, hold

__all__ = ["KeepAlive", "KeepAliveRefused", "LaunchError", "LaunchedSidecar", "forebay_program", "hold", "join_or_start"]

LAUNCH_S = 75.0  # `forebay launch` gives up by itself after 60 s: 45 s in the queue, 15 s for a start of its own
# What the sidecar imports and few training images hold all of.
_NEEDS = ("aiohttp", "boto3", "click", "diskcache", "prometheus_client", "pydantic", "rich", "xxhash")


@dataclass(frozen=True)
class LaunchedSidecar:
    """A sidecar at ``endpoint`` (``http://host:port``), held until ``close``.

    ``how``: "named" (FOREBAY_URL), "joined" or "started"; ``log``: the file a sidecar we started writes to, else ""; ``notices``: what a
    new one decided by itself (cache directory, size); ``without_effect``: settings that were asked for and that a joined one does not have,
    in words, None where it is not known.
    """

    endpoint: str
    how: str
    hold: Optional[KeepAlive]
    log: str = ""
    notices: Tuple[str, ...] = ()
    without_effect: Optional[Tuple[str, ...]] = None

    def close(self) -> None:
        if self.hold is not None:
            self.hold.close()

    def __enter__(self) -> LaunchedSidecar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def join_or_start(
    argv_extra: Sequence[str] = (),
    environ: Optional[Mapping[str, str]] = None,
    *,
    program: Optional[Sequence[str]] = None,
    timeout_s: float = LAUNCH_S,
) -> LaunchedSidecar:
    """The sidecar of FOREBAY_URL, else a running one of this user with the same credentials, else a new one; held.

    ``argv_extra`` are flags of ``forebay serve`` for a new one; ``program`` the command that stands for ``forebay``. Raises ``LaunchError``
    with the last lines of a sidecar that would not start, and its exit code.
    """
    environ = os.environ if environ is None else environ
    token, job = environ.get("FOREBAY_TOKEN", ""), environ.get("FOREBAY_JOB", "")
    named = environ.get("FOREBAY_URL", "").rstrip("/")
    if named:
        return LaunchedSidecar(named, "named", _hold_named(named, token, job))
    found = list(program) if program is not None else forebay_program(environ)
    return _launched([*found, "launch", *argv_extra], _surroundings(found, environ), token, job, time.monotonic() + timeout_s)


def _hold_named(endpoint: str, token: str, job: str) -> Optional[KeepAlive]:
    """None for one that knows no holds: whoever named it keeps it."""
    try:
        return hold(endpoint, token, job=job)
    except KeepAliveRefused as refused:
        if refused.status not in (404, 405):
            raise LaunchError(f"FOREBAY_URL: {refused}") from refused
        return None
    except LaunchError as error:
        raise LaunchError(f"FOREBAY_URL: {error}") from error


def forebay_program(environ: Optional[Mapping[str, str]] = None) -> list[str]:
    """The command line of the ``forebay`` that belongs to this package. Raises ``LaunchError`` when there is none.

    The command is that of the environment this package was installed in, which may not be this interpreter's (``forebay run`` lends its
    own); else this interpreter, if it has what a sidecar needs; else the first ``forebay`` on PATH.
    """
    beside = _environment_of(__file__)
    command = os.path.join(beside, "bin", "forebay") if beside else ""
    if command and os.access(command, os.X_OK):
        return [command]
    if sys.executable and sys.version_info >= (3, 11) and all(find_spec(name) is not None for name in _NEEDS):
        return [sys.executable, "-P", "-m", "forebay_proxy"]  # -P: a queue.py in the training directory shadows the library's otherwise
    found = shutil.which("forebay", path=(os.environ if environ is None else environ).get("PATH"))
    if found is None:
        raise LaunchError(
            "no 'forebay' command to start a sidecar with; install it (pip install forebay), or name a sidecar by FOREBAY_URL"
        )
    return [found]


def _environment_of(module_file: str) -> str:
    """``/x`` for a module of this package in ``/x/lib/pythonN.M/site-packages``, else "" (a source tree)."""
    site = os.path.abspath(module_file)
    for _ in __name__.split("."):
        site = os.path.dirname(site)
    lib, name = os.path.split(site)
    return os.path.dirname(os.path.dirname(lib)) if name == "site-packages" else ""


def _surroundings(program: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of ``program``: what only this interpreter may import is not for another one."""
    if program[0] == sys.executable or _environment_of(__file__) == sys.prefix:
        return dict(environ)
    return {name: value for name, value in environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def _launched(command: Sequence[str], environ: Mapping[str, str], token: str, job: str, deadline: float) -> LaunchedSidecar:
    """By one ``forebay launch``, which holds the sidecar until its standard input ends."""
    try:
        process = subprocess.Popen(  # noqa: S603  # our own program, no shell
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(environ)
        )
    except OSError as error:
        raise LaunchError(f"{command[0]}: cannot be run: {error.strerror}") from error
    with process:
        try:
            told = _told(process, deadline)
            held, without = hold(told["url"], token, job=job), told.get("without_effect")
            notices = tuple(told.get("notices", ()))
            return LaunchedSidecar(
                told["url"], told["how"], held, told.get("log") or "", notices, None if without is None else tuple(without)
            )
        except BaseException:
            process.kill()
            raise
        finally:
            assert process.stdin is not None
            process.stdin.close()  # our hold is taken, or there will be none: it may end


def _told(process: subprocess.Popen[bytes], deadline: float) -> dict[str, Any]:
    """The one line it says on stdout. Raises ``LaunchError`` with what it said instead."""
    assert process.stdout is not None
    assert process.stderr is not None
    said = {process.stdout: b"", process.stderr: b""}
    with selectors.DefaultSelector() as selector:
        for pipe in said:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map() and not said[process.stdout].endswith(b"\n"):
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise LaunchError("the sidecar was not ready in time; is this node overloaded, or another start hanging?")
            for key, _ in ready:
                data = os.read(key.fd, 4096)
                said[key.fileobj] += data  # type: ignore[index]  # it is one of the two pipes
                if not data:
                    selector.unregister(key.fileobj)
    out, errors = said.values()
    with suppress(ValueError):
        found = json.loads(out)
        if isinstance(found, dict) and isinstance(found.get("url"), str) and isinstance(found.get("how"), str):
            return found
    code = process.wait()
    text = errors.decode("utf-8", "replace").strip() or out.decode("utf-8", "replace").strip() or "it said nothing"
    text = text.replace("'forebay launch --help'", "'forebay serve --help'")  # its options are those, and this verb is nobody's to know
    prefix = "forebay: "
    lines = [line[len(prefix) :] if line.startswith(prefix) else line for line in text.splitlines()]
    raise LaunchError(f"{'; '.join(lines[-5:])} (exit code {code})")
