"""``forebay takeover``: a ``.pth`` in a training environment, for launchers that wipe ``PYTHONPATH``."""

from __future__ import annotations

import importlib.util
import json
import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

import click

from forebay_proxy.cli.output import notice, say
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.exit_codes import ExitCode

__all__ = ["HOOK", "PTH_NAME", "open_to_others", "path_variables", "pth_text", "takeover", "takeover_folder"]

PTH_NAME = "forebay-takeover.pth"
HOOK = "forebay_takeover_hook"  # the module in the loader's folder that installs the hook
_ASK_S = 30.0  # enough for a Python on a slow network disk
# -E ignores PYTHONPATH, as such launchers do: a hook that is found then came from the .pth.
_ASK = f"import json, sys, sysconfig; print(json.dumps([sysconfig.get_path('purelib'), sys.version.split()[0], {HOOK!r} in sys.modules]))"

python_option = click.option(
    "--python", default="python", show_default=True, metavar="PATH", help="The interpreter that training runs with."
)


def _ask(python: str) -> tuple[Path, str, bool]:
    """Return the path of its ``.pth``, its version, and whether the hook is installed. Raises ``ConfigError`` if it does not answer."""
    environ = {**os.environ, "FOREBAY_TAKEOVER": ""}
    try:
        done = subprocess.run([python, "-E", "-c", _ASK], capture_output=True, text=True, timeout=_ASK_S, env=environ, check=True)  # noqa: S603
        packages, version, hooked = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise ConfigError(
            f"{python} does not run as a Python: {type(error).__name__}",
            next_step="name the interpreter that training runs with: --python PATH",
        ) from error
    return Path(packages) / PTH_NAME, str(version), bool(hooked)


@click.group(invoke_without_command=False)
def takeover() -> None:
    """Take webdataset over in every process of a Python environment, where a launcher wipes PYTHONPATH.

    \b
    Examples:
      forebay takeover install --python /venv/bin/python
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
    pth, version, _ = _ask(python)
    if tuple(int(number) for number in version.split(".")[:2]) < (3, 9):  # it could not parse the hook, and would complain at each start
        raise ConfigError(f"{python} is Python {version}", next_step="take one of 3.9 or newer, or 'forebay env'")
    if (place := open_to_others(folder)) is not None:
        notice(f"anybody on this machine may write to {place}, and what lies there runs in every process of {python} from now on")
    pth.write_text(pth_text(folder), encoding="utf-8")
    if not _ask(python)[2]:
        notice(f"written to {pth}, but {python} does not read it (was it started with -S?)")
        return ExitCode.PART_FAILED
    say(f"installed: {pth} (Python {version}) -> {folder}")
    return ExitCode.DONE


@takeover.command()
@python_option
def remove(python: str) -> int:
    """Take the .pth away again."""
    pth, _, _ = _ask(python)
    try:
        pth.unlink()
    except FileNotFoundError:
        say(f"not installed: there is no {pth}")
        return ExitCode.DONE
    say(f"removed: {pth}")
    return ExitCode.DONE


def takeover_folder() -> Path | None:
    """The folder for ``PYTHONPATH``; None if the loader is not installed beside this package, as it normally is."""
    found = importlib.util.find_spec("forebay_loader")  # found without importing it: the sidecar does not depend on the loader
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).resolve().parent / "takeover" / "path"
    return folder if (folder / f"{HOOK}.py").is_file() else None


def open_to_others(folder: Path) -> Path | None:
    """The first part of the path to the hook in ``folder`` that any user of this machine may replace; None if there is none."""
    for place in (folder / f"{HOOK}.py", folder, *folder.parents):
        mode = place.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return place
    return None


def path_variables(folder: Path | None, environ: Mapping[str, str]) -> dict[str, str]:
    """``PYTHONPATH`` with ``folder`` in front, once. Empty if there is no folder, or if its name cannot be part of ``PYTHONPATH``."""
    if folder is None or os.pathsep in str(folder):
        return {}
    present = environ.get("PYTHONPATH", "")
    # An empty entry would be the working directory.
    others = [entry for entry in present.split(os.pathsep) if entry != str(folder)] if present else []
    return {"PYTHONPATH": os.pathsep.join([str(folder), *others])}


def pth_text(folder: Path) -> str:
    """The one line of the ``.pth``. It does nothing if the folder is gone: a ``.pth`` that fails prints an error at
    every start of Python.
    """
    found = f"os.path.isfile(os.path.join(p, {HOOK + '.py'!r}))"
    # The folder is on the path only during the import.
    load = f"(sys.path.append(p), __import__({HOOK!r}).install(), sys.path.remove(p))"
    # In ASCII: `site` reads a .pth in the encoding of the process's locale.
    return f"import os, sys; p = {str(folder)!a}; {found} and {load}\n"
