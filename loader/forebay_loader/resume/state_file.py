"""``fb.save_state`` and ``fb.load_state``: a checkpoint's dictionary in a JSON file.

The file is written completely or not at all. Reading it detects damaged, foreign, old and too large files.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Mapping, Union

from forebay_loader.base.shown_text import size_text
from forebay_loader.resume.state_parts import check_format, states_in

__all__ = ["load_state", "save_state"]

PathText = Union[str, "os.PathLike[str]"]
MOST_BYTES = 256_000_000  # far above any state (docs/resume.md has sizes): a larger one holds something else
_NAMED = "forebay state"
_NUMBERS = (int, float)  # and bool


def save_state(state: Mapping[str, Any], path: PathText) -> None:
    """Write ``state`` to ``path`` completely, or leave the file as it was.

    Args:
        state: A ``state_dict()``, a merged state, or a checkpoint's dictionary of them and of other JSON values: texts, numbers, lists,
            and dictionaries with texts as keys. A tuple comes back as a list.
        path: The file. It is replaced by a rename after the new bytes are on the disk. A run that is killed meanwhile keeps the old one.

    Raises:
        TypeError: ``state`` has a value that JSON cannot hold, which the text names. Use ``torch.save`` for tensors.
        ValueError: The state has another format, or is above 256 MB.
        OSError: The file cannot be written.

    Examples:
        >>> fb.save_state({"loader": loader.state_dict(), "step": step}, f"step-{step}.rank-{rank}.json")
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"save_state takes a dictionary; got {type(state).__name__}")
    _check_values(state, "")
    for where, each in states_in(state):
        check_format(each, where or "this")
    text = _text(state)
    held = json.dumps({"file": _NAMED, "digest": _digest(text)})[:-1] + f', "state": {text}}}\n'
    if len(held) > MOST_BYTES:
        raise ValueError(f"this state is {size_text(len(held))} as JSON, and a state file holds {size_text(MOST_BYTES)} at most")
    _replace(Path(path), held.encode("ascii"))


def load_state(path: PathText) -> dict[str, Any]:
    """Read what ``save_state`` wrote.

    Args:
        path: The file.

    Returns:
        The state or the checkpoint's dictionary.

    Raises:
        FileNotFoundError: There is no such file.
        OSError: The file cannot be read.
        ValueError: The file is damaged, was not written by ``save_state``, has a format that this version does not read, or is above 256
            MB. The text names the file.

    Examples:
        >>> checkpoint = fb.load_state("step-1000.rank-0.json")
        >>> loader.load_state_dict(checkpoint["loader"])
    """
    where = Path(path)
    with where.open("rb") as file:
        held = file.read(MOST_BYTES + 1)
    if len(held) > MOST_BYTES:
        raise ValueError(
            f"{where} is {size_text(where.stat().st_size)}, and a state file holds {size_text(MOST_BYTES)} at most: is it another file?"
        )
    state = _opened(where, held)
    for name, each in states_in(state):
        check_format(each, f"{where}: {name or 'this'}")
    return state


def _opened(where: Path, held: bytes) -> dict[str, Any]:
    if not held.lstrip().startswith(b"{"):
        raise ValueError(f"{where} is no file of fb.save_state: {_foreign(held)}")
    try:
        found = json.loads(held)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{where} is damaged, or was not written by fb.save_state: {type(error).__name__}: {error}, of {len(held)} bytes. Take the "
            "checkpoint before it"
        ) from None
    if found.get("file") != _NAMED or not isinstance(found.get("state"), dict):
        raise ValueError(f"{where} is no file of fb.save_state: it is JSON, and holds {sorted(found)[:6]}")
    if _digest(_text(found["state"])) != found.get("digest"):
        raise ValueError(f"{where} is damaged: its {len(held)} bytes do not fit their checksum. Take the checkpoint before it")
    state: dict[str, Any] = found["state"]
    return state


def _foreign(held: bytes) -> str:
    if not held:
        return "it is empty. Take the checkpoint before it"
    if held.startswith((b"PK\x03\x04", b"\x80")):
        return "it looks like one of torch.save; torch.load(path, weights_only=True) reads that, and load_state_dict() the state in it"
    return f"it begins with {held[:12]!r}"


def _replace(path: Path, held: bytes) -> None:
    name = path.parent / f".{path.name[:100]}.{secrets.token_hex(4)}.part"
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)  # the umask applies, as for any file
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(held)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename survive a power cut, if the file system supports that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _text(state: Any) -> str:
    return json.dumps(state, allow_nan=False, separators=(",", ":"))


def _digest(text: str) -> str:
    return blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def _check_values(value: Any, where: str) -> None:
    """Raise ``TypeError`` with the location of a value that JSON would not give back unchanged."""
    if value is None or isinstance(value, (str, *_NUMBERS)):
        if isinstance(value, float) and not -float("inf") < value < float("inf"):
            raise TypeError(f"{where} is {value}, which JSON cannot hold")
        return
    if isinstance(value, Mapping):
        for name, each in value.items():
            if not isinstance(name, str):
                raise TypeError(
                    f"{where or 'the state'} has the key {name!r}, and JSON's keys are texts: it would come back as {str(name)!r}"
                )
            _check_values(each, f"{where}.{name}" if where else name)
    elif isinstance(value, (list, tuple)):
        for at, each in enumerate(value):
            _check_values(each, f"{where}[{at}]")
    else:
        raise TypeError(
            f"{where} is of type {type(value).__module__}.{type(value).__qualname__}, which JSON cannot hold. Weights and tensors are "
            "torch.save's, and a state may go with them: torch.save({'loader': loader.state_dict(), …})"
        )
