"""``forebay run -- CMD``: finds or starts this node's sidecar, and runs the command unchanged beside it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from forebay_proxy.cli.client import KeepAlive
from forebay_proxy.cli.options import Seams, SettingsApart, config_option, load_settings, settings_options, url_option
from forebay_proxy.cli.output import error_line, notice
from forebay_proxy.cli.run.command import refusal, run_command
from forebay_proxy.cli.run.env import fresh_job, job_variables, traps
from forebay_proxy.cli.run.join import Joined, join, without_effect
from forebay_proxy.cli.run.summary import has_read, summary
from forebay_proxy.cli.run.takeover import path_variables, takeover_folder
from forebay_proxy.cli.run.takeover_report import TakeoverReport
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.errors import ConfigError, ForebayError
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.node.runfile import RunDirectory

__all__ = ["Watch", "run"]

_MOST_STARTS, _WITHIN_S = 5, 600.0  # if it dies that often, another start does not help
_SHELL = "/bin/sh"
_PATIENCE_S = 0.2  # wait in each look() while a sidecar starts
_OTHERS_S = 3.0  # the run that started a sidecar notices its end within a second, and starting takes another second
_SELDOM_S = 20.0  # between two checks whether a lost sidecar is back


@click.command(cls=SettingsApart, context_settings={"allow_interspersed_args": False})
@click.option("--required", is_flag=True, help="Without a sidecar do not run the command either: exit 2.")
@click.option("--quiet", is_flag=True, help="Say nothing unless something is wrong.")
@url_option
@settings_options
@config_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def run(
    seams: Seams, /, *, required: bool, quiet: bool, url: str | None, config: Path | None, command: tuple[str, ...], **flags: Any
) -> int:
    """Run COMMAND with its shards coming through this node's sidecar, which is started if there is none.

    Every Python it starts has webdataset taken over as it is imported: unchanged scripts get plans, descriptors and resumed shards.
    FOREBAY_TAKEOVER=0 leaves that out; then GOPEN_REWRITE alone leads to the sidecar, as with 'forebay env'.

    \b
    Examples:
      forebay run -- torchrun --nproc-per-node 8 train.py
      forebay run --cache-size 200GB -- python train.py
      srun --ntasks-per-node=8 forebay run -- python train.py

    Forebay writes to stderr only, passes signals on and exits as the command does (128 + n for signal n). If no sidecar can be had it says
    so and runs the command all the same. A sidecar it started stays while commands use it, and 60 s more; settings below are for that one.
    A running sidecar keeps its own: differences are printed, or with --required refused; only --allow-origin is handed over to it.
    """
    if refused := refusal(command):
        notice(refused)
        return ExitCode.CANNOT_BEGIN
    settings = load_settings(flags, config)  # first: a value that cannot be parsed is an error of the command line, like an unknown flag
    with contextlib.ExitStack() as held:
        try:
            job = fresh_job(os.environ, socket.gethostname(), os.getpid())
            joined = held.enter_context(join(os.environ, seams.program, url=url, config=config, flags=flags, job=job))
            variables = job_variables(joined.url, os.environ, job)
            hold = held.enter_context(joined.hold or joined.sidecar.hold(job))
            _compare(joined, settings, required=required)
        except (ForebayError, OSError) as error:
            held.close()  # release it now: the command may run for days
            if required:
                notice(f"{error_line(error)}; not run, because of --required")
                return ExitCode.CANNOT_BEGIN
            notice(f"{error_line(error)}; running without Forebay")
            return _run(command, os.environ, None)[0]

        def again(cache_dir: str) -> Joined:
            """Start the sidecar again on its directory, or join one that another run on this node has started in the meantime."""
            same = {**flags, "port": urlsplit(joined.url).port, "cache_dir": cache_dir}
            return join(os.environ, seams.program, config=config, flags=same, job=job)

        return _beside(joined, hold, again, variables, command, quiet=quiet)


def _compare(joined: Joined, settings: Settings, *, required: bool) -> None:
    """Report which of our settings have no effect, because the sidecar already runs. With ``required``, raise ``ConfigError`` instead."""
    found = without_effect(joined, settings) if joined.how != "started" else None
    if found:
        told = f"the sidecar at {joined.url} runs with other settings, and they count: {'; '.join(found)}"
        step = "'forebay stop' ends it, and the next run starts one with yours"
        if required:
            raise ConfigError(told, next_step=step)
        notice(f"{told}; {step}")


def _beside(
    joined: Joined, hold: KeepAlive, again: Callable[[str], Joined], variables: Mapping[str, str], command: tuple[str, ...], *, quiet: bool
) -> int:
    hold.ping()
    before = _status(joined)
    taking: dict[str, str] = {}
    if os.environ.get("FOREBAY_TAKEOVER", "") != "0":
        taking = path_variables(takeover_folder(), os.environ)
        if not taking:
            notice("webdataset is not taken over: forebay_loader is not installed beside forebay, or no PYTHONPATH can name its folder")
    reports: Path | None = None
    with contextlib.suppress(ForebayError, OSError):  # no run directory is needed for a sidecar that the user named
        reports = RunDirectory.of(os.environ).path if taking else None
    _say_beginning(joined, before or {}, quiet=quiet, taken=bool(taking))
    directory = (before or {}).get("cache_dir")
    watch = Watch(joined, hold, partial(again, directory) if directory and joined.how != "named" else None)
    with contextlib.closing(watch), TakeoverReport(reports) as report:
        code, ran = _run(command, {**os.environ, **variables, **taking, **report.variables()}, watch)
        if ran:
            _say_end(joined, before, watch, report, variables["FOREBAY_JOB"], quiet=quiet)
    return code


class Watch:
    """Keeps the sidecar from ending while idle. If it is lost, starts it again on the same directory and address, which the command still
    uses.

    A sidecar that the user named (``--url``, FOREBAY_URL) is not started again. Its loss is only reported, once.
    """

    def __init__(self, joined: Joined, hold: KeepAlive, again: Callable[[], Joined] | None) -> None:
        self._joined = joined
        self._hold = hold
        self._again = again
        self._lost_s: float | None = None
        self._starts_s: list[float] = []
        self._starting: Future[Joined] | None = None
        self._looked_s = 0.0
        self._said = False

    def look(self) -> None:
        now = time.monotonic()
        if self._said and now - self._looked_s < _SELDOM_S:
            return
        self._looked_s = now
        if self._starting is None and self._hold.ping():
            self._lost_s, self._said = None, False
        elif self._again is None:
            self.gone("the command goes on, reading its shards directly")
        elif not self._said:
            self._start_again(now)

    def _start_again(self, now: float) -> None:
        assert self._again is not None
        if self._lost_s is None:
            self._lost_s = now
            # poll() reaps the process. Otherwise its run file would still name an existing process.
            code = None if self._joined.process is None else self._joined.process.poll()
            how = "" if code is None else f" (killed by signal {-code})" if code < 0 else f" (exit code {code})"
            notice(f"the sidecar at {self._joined.url} is gone{how}; it is started again")
        if self._joined.how == "joined" and now - self._lost_s < _OTHERS_S:
            return  # the run that started it knows its settings, and starts it first
        self._starts_s = [at for at in self._starts_s if now - at < _WITHIN_S]
        if self._starting is None and len(self._starts_s) >= _MOST_STARTS:
            self.gone(f"it was started {_MOST_STARTS} times in {_WITHIN_S / 60:g} min; the command goes on, reading its shards directly")
            return
        if self._starting is None:
            self._starts_s.append(now)
            self._starting = _in_a_thread(self._again)
        wait([self._starting], _PATIENCE_S)
        if not self._starting.done():
            return  # the next look() checks again: a start may take long on a busy disk, and signals must not wait for it
        try:
            found = self._starting.result()
        except (ForebayError, OSError) as error:
            self._starting = None
            notice(f"the sidecar did not start again: {error_line(error)}")
            return
        self._starting = None
        if found.url != self._joined.url:
            found.__exit__()
            self.gone(f"another one runs at {found.url}, which the command does not know; it goes on, reading its shards directly")
            return
        self._hold.close()
        self._joined, self._hold = found, found.hold or self._hold
        notice(f"the sidecar at {found.url} is back after {time.monotonic() - self._lost_s:.1f} s")
        self._lost_s = None

    def ended(self) -> None:
        """Report at the end of the command that nobody knows what it read. The first report may be a million lines above."""
        if self._said:
            notice(f"the sidecar at {self._joined.url} was lost on the way: what was read afterwards came directly, uncounted")
        else:
            self.gone("")

    def gone(self, what_now: str) -> None:
        if not self._said:
            self._said = True
            log = f"; its log is {self._joined.log}" if self._joined.log else ""
            notice("; ".join(filter(None, (f"the sidecar at {self._joined.url} is gone", what_now))) + log)

    def close(self) -> None:
        """Close the connection that keeps the sidecar alive."""
        self._hold.close()


def _in_a_thread(start: Callable[[], Joined]) -> Future[Joined]:
    """Return a future of ``start()``. The thread is a daemon, so the end of the command does not wait for it."""
    given: Future[Joined] = Future()

    def run() -> None:
        try:
            given.set_result(start())
        except BaseException as error:  # result() raises it
            given.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return given


def _run(command: tuple[str, ...], environ: Mapping[str, str], watch: Watch | None) -> tuple[int, bool]:
    """Return the command's exit code, and whether the command could be started."""
    try:
        return run_command(command, environ, tick=watch.look if watch else lambda: None), True
    except FileNotFoundError:
        quoted = len(command) == 1 and " " in command[0]
        notice(f"{command[0]}: command not found{f'; without the quotes: forebay run -- {command[0]}' if quoted else ''}")
        return ExitCode.NOT_FOUND, False
    except OSError as error:
        if error.errno == errno.ENOEXEC and command[0] != _SHELL:  # a script without "#!": run it by a shell, as a shell would
            return _run((_SHELL, *command), environ, watch)
        notice(f"{command[0]}: cannot be run: {error.strerror}")
        return ExitCode.NOT_EXECUTABLE, False


def _status(joined: Joined) -> dict[str, Any] | None:
    try:
        return joined.sidecar.status()
    except ForebayError:
        return None


def _say_beginning(joined: Joined, status: Mapping[str, Any], *, quiet: bool, taken: bool) -> None:
    for text in () if taken else traps(os.environ):  # they only concern GOPEN_REWRITE, without the takeover
        notice(text)
    if quiet:
        return
    notice({"named": "using", "joined": "joined", "started": "started"}[joined.how] + f" the sidecar at {joined.url}")
    # The run that starts it prints what it chose (directory, size); nobody reads the sidecar's own log.
    for text in (*status.get("chosen", ()), *status.get("notices", ())) if joined.how == "started" else ():
        notice(text)


def _say_end(joined: Joined, before: dict[str, Any] | None, watch: Watch, report: TakeoverReport, job: str, *, quiet: bool) -> None:
    after = _status(joined)
    if after is None:
        watch.ended()
    elif not quiet and before is not None:
        notice(summary(before, after, job))
    if not quiet and (taken := report.line(read=after is not None and has_read(after, job))):
        notice(taken)
