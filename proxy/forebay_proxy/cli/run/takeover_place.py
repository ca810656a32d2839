"""Where the code that takes webdataset over lies, and how a Python is led to it: by ``PYTHONPATH``, or by a ``.pth`` in its environment."""

from __future__ import annotations

import importlib.util
import os
import stat
from collections.abc import Mapping
from pathlib import Path

__all__ = ["HOOK", "open_to_others", "path_variables", "pth_text", "takeover_folder"]

HOOK = "forebay_takeover_hook"  # the module in that folder that does it


def takeover_folder() -> Path | None:
    """The folder for ``PYTHONPATH``; None where the loader is not installed beside us (it always is, unless somebody removed it)."""
    found = importlib.util.find_spec("forebay_loader")  # only found, not imported: the sidecar does not know the loader
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).resolve().parent / "takeover" / "path"
    return folder if (folder / f"{HOOK}.py").is_file() else None


def open_to_others(folder: Path) -> Path | None:
    """What on the way to the hook in ``folder`` anybody on this machine may replace; None where there is nothing."""
    for place in (folder / f"{HOOK}.py", folder, *folder.parents):
        mode = place.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return place
    return None


def path_variables(folder: Path | None, environ: Mapping[str, str]) -> dict[str, str]:
    """``PYTHONPATH`` with ``folder`` in front, once. Empty where there is none, or where no ``PYTHONPATH`` can name it."""
    if folder is None or os.pathsep in str(folder):
        return {}
    present = environ.get("PYTHONPATH", "")
    others = (
        [entry for entry in present.split(os.pathsep) if entry != str(folder)] if present else []
    )  # an empty one is the working directory
    return {"PYTHONPATH": os.pathsep.join([str(folder), *others])}


def pth_text(folder: Path) -> str:
    """The one line of the ``.pth``. A folder that has gone is passed over: a ``.pth`` that fails complains at every start."""
    found = f"os.path.isfile(os.path.join(p, {HOOK + '.py'!r}))"
    # Appended, imported and taken away again: nothing of that folder stays on the path.
    load = f"(sys.path.append(p), __import__({HOOK!r}).install(), sys.path.remove(p))"
    # In ASCII: `site` reads a .pth in the encoding of whatever locale a process has.
    return f"import os, sys; p = {str(folder)!a}; {found} and {load}\n"
