"""``forebay takeover``: a ``.pth`` in a training environment, for launchers that wipe ``PYTHONPATH``."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import click

from forebay_proxy.cli.output import notice, say
from forebay_proxy.cli.run.takeover_place import HOOK, open_to_others, pth_text, takeover_folder
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.exit_codes import ExitCode

__all__ = ["PTH_NAME", "takeover"]

PTH_NAME = "forebay-takeover.pth"
_ASK_S = 30.0  # a Python on a slow network disk starts within that
# -E wipes PYTHONPATH as such launchers do: what is found then came by way of the .pth.
_ASK = f"import json, sys, sysconfig; print(json.dumps([sysconfig.get_path('purelib'), sys.version.split()[0], {HOOK!r} in sys.modules]))"

python_option = click.option(
    "--python", default="python", show_default=True, metavar="PATH", help="The interpreter that training runs with."
)


@dataclass(frozen=True)
class _Interpreter:
    """What a Python says of itself."""

    packages: Path
    version: str
    hooked: bool

    @property
    def pth(self) -> Path:
        return self.packages / PTH_NAME

    @property
    def is_too_old(self) -> bool:
        return tuple(int(number) for number in self.version.split(".")[:2]) < (3, 9)

    @classmethod
    def ask(cls, python: str) -> _Interpreter:
        """Raises ``ConfigError`` when it does not answer."""
        environ = {**os.environ, "FOREBAY_TAKEOVER": ""}
        try:
            done = subprocess.run([python, "-E", "-c", _ASK], capture_output=True, text=True, timeout=_ASK_S, env=environ, check=True)  # noqa: S603
            packages, version, hooked = json.loads(done.stdout.splitlines()[-1])
        except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
            raise ConfigError(
                f"{python} does not run as a Python: {type(error).__name__}",
                next_step="name the interpreter that training runs with: --python PATH",
            ) from error
        return cls(Path(packages), str(version), bool(hooked))


@click.group(invoke_without_command=False)
def takeover() -> None:
    """Take webdataset over in every process of a Python environment, where a launcher wipes PYTHONPATH.

    \b
    Examples:
      forebay takeover install --python /venv/bin/python
      forebay takeover status
      forebay takeover remove

    'forebay run' does it by PYTHONPATH, for its own command alone; this is for launchers that do not pass that on. It is one line in a .pth
    file: nothing happens in a process until webdataset is imported and a sidecar runs. FOREBAY_TAKEOVER=0 turns it off for a process.
    """


@takeover.command()
@python_option
def install(python: str) -> int:
    """Put the .pth into the environment of PATH.

    \b
    Examples:
      forebay takeover install                          for the python found first on PATH
      forebay takeover install --python /venv/bin/python
    """
    folder = takeover_folder()
    if folder is None:
        raise ConfigError("forebay_loader is not installed beside forebay_proxy", next_step="install forebay again")
    found = _Interpreter.ask(python)
    if found.is_too_old:  # it could not even read the hook, and would say so at each of its starts
        raise ConfigError(f"{python} is Python {found.version}", next_step="take one of 3.9 or newer, or 'forebay env'")
    if (place := open_to_others(folder)) is not None:
        notice(f"anybody on this machine may write to {place}, and what lies there runs in every process of {python} from now on")
    found.pth.write_text(pth_text(folder), encoding="utf-8")
    if not _Interpreter.ask(python).hooked:
        notice(f"written to {found.pth}, but {python} does not read it (was it started with -S?)")
        return ExitCode.PART_FAILED
    say(f"installed: {found.pth} (Python {found.version}) -> {folder}")
    return ExitCode.DONE


@takeover.command()
@python_option
def remove(python: str) -> int:
    """Take the .pth away again."""
    pth = _Interpreter.ask(python).pth
    try:
        pth.unlink()
    except FileNotFoundError:
        say(f"not installed: there is no {pth}")
        return ExitCode.DONE
    say(f"removed: {pth}")
    return ExitCode.DONE


@takeover.command()
@python_option
def status(python: str) -> int:
    """Say whether the .pth is there and whether a process with an empty PYTHONPATH is taken over."""
    found = _Interpreter.ask(python)
    if not found.pth.exists():
        say(f"not installed: there is no {found.pth}")
    elif not found.hooked:
        say(
            f"installed, but without effect: {found.pth} leads to a Forebay that is not there any more; 'forebay takeover install' mends it"
        )
    else:
        say(f"installed: {found.pth} (Python {found.version})")
    return ExitCode.DONE
