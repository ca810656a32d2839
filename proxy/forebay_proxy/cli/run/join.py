"""Joining the node's sidecar, or starting one: what ``forebay run`` does before its command.

An address that was named is always used. A found sidecar is used only if it reads with the same credentials, endpoints and proxies;
otherwise one of our own starts beside it, with a cache directory of its own. Joining holds one lock, so of many commands that begin at once
one starts the sidecar and the others join it. The lock is the starter's and the starting sidecar's together: should the starter be killed,
the next one waits until that sidecar is ready, and joins it.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

import click

from forebay_proxy.cli.client import KeepAlive, SidecarClient, SidecarHung, SidecarRefused, SidecarUnreachable, named_address, token_of
from forebay_proxy.cli.options import Seams, as_arguments, config_option, load_settings, settings_options
from forebay_proxy.cli.output import error_line, say_json
from forebay_proxy.config.settings import Settings, as_json, flag_name, has_flag, load
from forebay_proxy.config.settings_file import find_file
from forebay_proxy.core.errors import ForebayError
from forebay_proxy.core.quantities import format_size
from forebay_proxy.node import cache_location
from forebay_proxy.node.runfile import RunDirectory
from forebay_proxy.wire.protocol.keepalive import KeepAliveRefused, LaunchError

__all__ = ["Joined", "join", "launch", "without_effect"]

_START_S = 15.0  # loading the index of 100,000 segments takes 0.1 s; a loaded node with a slow disk needs a few
_IDLE_EXIT_S = 60  # long enough for the next command of a script to join, short enough to be gone when people look
_PROBE_S = 10.0  # as for a hold: a sidecar that is given up on too early gets a second one beside it
_LAST_LINES = 5  # lines of a log: the cause is in the last one


@dataclass(frozen=True)
class Joined:
    """A ready sidecar, held until the end of a ``with``. ``url`` is its http address; ``process`` and ``log`` are set if we started it."""

    sidecar: SidecarClient
    url: str
    how: Literal["named", "joined", "started"]
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None
    hold: KeepAlive | None = None

    def __enter__(self) -> Joined:
        return self

    def __exit__(self, *_: object) -> None:
        if self.hold is not None:
            self.hold.close()


def join(
    environ: Mapping[str, str], program: Sequence[str],
    *, url: str | None = None, config: Path | None = None, flags: Mapping[str, Any] | None = None, job: str = "",
) -> Joined:  # fmt: skip
    """A ready sidecar, held for ``job``: at ``url``, or one that runs here, or ``program`` started with ``config`` and ``flags``.

    Raises ``ForebayError`` or ``OSError`` when there is none to be had; its message is fit to be one line.
    """
    address, named_by = named_address(url, environ)
    if address:
        sidecar = SidecarClient(address, token=token_of(environ))
        try:
            sidecar.ready(_PROBE_S)
            url = address if address.startswith("http") else str(sidecar.status(_PROBE_S)["url"])
        except (SidecarUnreachable, SidecarRefused) as error:
            raise SidecarUnreachable(f"{named_by}: {error}", next_step=error.next_step) from error
        return Joined(sidecar, url.rstrip("/"), "named", hold=_held(sidecar, job))
    directory = RunDirectory.of(environ)
    fingerprint = directory.fingerprint(environ)
    with directory.starting() as lock:
        live = directory.live()
        for record in live:
            sidecar = SidecarClient(record.url, token=token_of(environ))
            if record.fingerprint == fingerprint and (hold := _held(sidecar, job)) is not None:
                return Joined(sidecar, record.url, "joined", hold=hold)
        beside = fingerprint if live else ""  # with other credentials than the one that runs: in a directory of its own
        arguments = [*program, *_arguments(flags or {}, config, environ, beside), "--json", "--start-lock", str(lock)]
        log = directory.new_log(f"forebay-{beside}" if beside else "forebay")
        process, why = _spawned(arguments, environ, log, lock)
        started = None if why else next((record for record in directory.live() if record.pid == process.pid), None)
        if started is not None:
            sidecar = SidecarClient(started.url, token=token_of(environ))
            if (hold := _held(sidecar, job)) is not None:
                return Joined(sidecar, started.url, "started", process, log, hold)
        ended = "did not start" if started is None else "started and ended again"
        raise SidecarUnreachable(f"the sidecar {ended}: {_last_words(log, why or _how_it_ended(process))} (log: {log})")


def _arguments(flags: Mapping[str, Any], config: Path | None, environ: Mapping[str, str], beside: str) -> list[str]:
    """For a sidecar that reads flags, environment and file as we do."""
    settings, added = load(flags, environ, find_file(config, environ)), dict[str, Any]()
    if settings.idle_exit_s is None:  # neither a flag nor the environment nor the file says otherwise
        added["idle_exit_s"] = _IDLE_EXIT_S
    if beside:
        place = cache_location.choose(settings, environ, cache_location.Machine.here(environ)).beside(beside)
        added["cache_dir"] = str(place.path)
    return as_arguments({**flags, **added}, config)


def _spawned(arguments: list[str], environ: Mapping[str, str], log: Path, lock: int) -> tuple[subprocess.Popen[bytes], str]:
    """A detached sidecar, which shares ``lock`` until it is ready, and why it is not ("": it is)."""
    # A session of its own: the terminal's Ctrl-C and hang-up are for the command, and others may have joined by then. Descriptors but
    # the start's lock are closed, or a lock or pipe of the caller would stay open for as long as the sidecar lives.
    with open(log, "ab") as stderr:
        process = subprocess.Popen(  # noqa: S603  # our own program, no shell
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=dict(environ), start_new_session=True,
            pass_fds=(lock,),
        )  # fmt: skip
    assert process.stdout is not None
    deadline, line = time.monotonic() + _START_S, b""
    with process.stdout as said, selectors.DefaultSelector() as selector:
        selector.register(said, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                process.kill()
                process.wait()
                return process, f"not ready within {_START_S:.0f} s"
            if not (chunk := os.read(said.fileno(), 4096)):
                process.wait()
                return process, _how_it_ended(process)
            line += chunk
    return process, ""


def _held(sidecar: SidecarClient, job: str) -> KeepAlive | None:
    """A hold of ``sidecar``, which is also the proof that it serves; None where it does not, or is about to end."""
    hold = sidecar.hold(job)
    try:
        hold.take(_PROBE_S)
    except KeepAliveRefused as refused:
        # An older version minds connections; a sidecar that takes no more holds, and does not drain, is kept by the holds it has.
        full = refused.status == HTTPStatus.SERVICE_UNAVAILABLE and _is_ready(sidecar)
        return hold if full or refused.status == HTTPStatus.NOT_FOUND else None
    except LaunchError:
        _is_ready(sidecar)
        return None
    return hold


def _is_ready(sidecar: SidecarClient) -> bool:
    """Raises ``SidecarHung``: another one would be refused its cache directory."""
    try:
        sidecar.ready(_PROBE_S)
    except SidecarHung:
        raise
    except (SidecarUnreachable, SidecarRefused):
        return False
    return True


# How long an idle sidecar stays is its starter's business; host and socket say where a job looks for one, not what it needs.
_NO_MATTER = frozenset({"idle_exit_s", "host", "socket", "allow_origin"})


def without_effect(joined: Joined, settings: Settings) -> list[str] | None:
    """Which of our settings, that were given (not defaults), a sidecar that runs already does not have: what runs, what was asked for.

    It is handed ``--allow-origin``. None where it does not tell: an older version.
    """
    try:
        running = joined.sidecar.status().get("settings")
    except ForebayError:
        running = None
    if not running:
        return None
    found = []
    for name, own in as_json(settings).items():
        theirs = running.get(name)
        if own["source"] == "default" or name in _NO_MATTER or theirs is None or own["value"] == theirs["value"]:
            continue
        label = flag_name(name) if has_flag(name) else name
        found.append(f"{label} {_shown(name, theirs['value'])}, not {_shown(name, own['value'])}")
    known = set((running.get("allow_origin") or {}).get("value") or ())
    if unknown := [entry for entry in settings.allow_origin if entry not in known]:
        try:
            joined.sidecar.allow(unknown)
        except SidecarRefused as refused:
            found.append(f"--allow-origin {', '.join(unknown)}: {error_line(refused)}")
    return found


def _shown(name: str, value: Any) -> str:
    if name == "cache_size" and isinstance(value, int):
        return format_size(value)
    if value is None or value == []:
        return "(default)"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _last_words(log: Path, ended: str) -> str:
    """The last lines it wrote, and how it ended."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = "; ".join(line.removeprefix("forebay: ") for line in lines[-_LAST_LINES:])
    return "; ".join(filter(None, (said, ended)))


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    if process.returncode is None:
        return "it runs, but is not to be found"
    return f"it was killed by signal {-process.returncode}" if process.returncode < 0 else f"it ended with exit code {process.returncode}"


@click.command(hidden=True)
@settings_options
@config_option
@click.pass_obj
def launch(seams: Seams, /, config: Path | None, **flags: Any) -> int:
    """Join or start this node's sidecar, say where in one line of JSON, and hold it until standard input ends."""
    settings = load_settings(flags, config)
    with join(os.environ, seams.program, config=config, flags=flags) as joined:
        started = joined.how == "started"
        status: dict[str, Any] = {}
        if started:
            with suppress(ForebayError):
                status = joined.sidecar.status()
        say_json({
            "event": "joined", "how": joined.how, "url": joined.url, "log": None if joined.log is None else str(joined.log),
            "notices": [str(text) for text in (*status.get("chosen", ()), *status.get("notices", ()))],  # people do not read a log for them
            "without_effect": None if started else without_effect(joined, settings),
        })  # fmt: skip
        sys.stdin.buffer.read()
    return 0
