"""A checkpoint in a file: what was saved comes back, a run killed in between keeps the old one, other files are told by their fault."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lengths import examples

import forebay_loader as fb
from forebay_loader.resume import state_file
from forebay_loader.resume.state_parts import sealed

STATE = sealed({"format": 3, "epoch": 3, "kind": "merged", "done": {"0": "all", "7": [[0, 5], [6, 9]]}, "made_of": {"shards": 9}})
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Empty, unlike the test's own."""
    made = tmp_path / "checkpoints"
    made.mkdir()
    return made


@given(st.dictionaries(st.text(max_size=5), values, max_size=4))
@settings(max_examples=examples(60), deadline=None)
def test_what_was_saved_comes_back(tmp_path_factory: pytest.TempPathFactory, checkpoint: dict[str, Any]) -> None:
    """Any JSON values around a state, texts of any script among them, value for value."""
    path = tmp_path_factory.getbasetemp() / "checkpoint.json"
    whole = {**checkpoint, "loader": STATE}
    fb.save_state(whole, path)
    assert fb.load_state(path) == whole


def test_a_file_like_any_other(folder: Path) -> None:
    """Named by a text or a path, with the rights that the umask leaves, and nothing beside it."""
    fb.save_state(STATE, str(folder / "state.json"))
    (folder / "plain").touch()
    assert stat.S_IMODE((folder / "state.json").stat().st_mode) == stat.S_IMODE((folder / "plain").stat().st_mode)
    assert {path.name for path in folder.iterdir()} == {"state.json", "plain"}


KILLED = f"""
import os, signal, sys
import forebay_loader as fb
at, path = sys.argv[1:]
kill = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
setattr(os, at, kill)
fb.save_state({STATE!r}, path)
"""


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_killed_while_it_saves(folder: Path, at: str) -> None:
    """Before its bytes are on the disk, and before the rename: the checkpoint before it is whole."""
    path = folder / "state.json"
    fb.save_state({"step": 1, "loader": STATE}, path)
    ended = subprocess.run([sys.executable, "-c", KILLED, at, str(path)], env={**os.environ, "PYTHONPATH": ":".join(sys.path)}, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert fb.load_state(path)["step"] == 1


def test_a_full_disk_leaves_the_old_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes through, the file stays, and no part of the new one is left."""
    path = folder / "state.json"
    fb.save_state(STATE, path)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        fb.save_state(sealed({**STATE, "epoch": 4}), path)
    assert fb.load_state(path) == STATE
    assert [each.name for each in folder.iterdir()] == ["state.json"]


class Tensor:
    """Of no kind that JSON has."""


UNSAVED: list[tuple[Any, type[Exception], str]] = [
    ([STATE], TypeError, "takes a dictionary; got list"),
    ({"model": {"weight": Tensor()}}, TypeError, "model.weight is of type tests.loader.resume.test_state_file.Tensor"),
    ({"sizes": [1, {2}]}, TypeError, "sizes[1] is of type builtins.set"),
    ({"by": {1: 2}}, TypeError, "by has the key 1, and JSON's keys are texts: it would come back as '1'"),
    ({"loss": float("nan")}, TypeError, "loss is nan"),
    ({"loader": {**STATE, "format": 1}}, ValueError, "loader is a state of format 1, written by an older Forebay"),
]


@pytest.mark.parametrize(("given", "kind", "words"), UNSAVED)
def test_what_cannot_be_saved(folder: Path, given: Any, kind: type[Exception], words: str) -> None:
    """Named by its place, before anything is written."""
    words = words.replace("tests.loader.resume.test_state_file", __name__)
    with pytest.raises(kind, match=re.escape(words)):
        fb.save_state(given, folder / "state.json")
    assert not list(folder.iterdir())


def changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    """Of the file's JSON one value."""

    def made(held: bytes) -> bytes:
        found = json.loads(held)
        change(found)
        return json.dumps(found).encode()

    return made


UNREAD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda held: b"", "it is empty"),
    "cut": (lambda held: held[:-9], "is damaged, or was not written by fb.save_state: JSONDecodeError"),
    "one digit is another": (lambda held: held.replace(b"[6,9]", b"[6,8]"), "bytes do not fit their checksum"),
    "no text": (lambda held: held.replace(b"merged", b"m\xffrged"), "is damaged"),
    "deeply nested": (lambda held: b'{"a":' * 100_000, "RecursionError"),
    "of torch.save": (lambda held: b"PK\x03\x04" + held, "it looks like one of torch.save; torch.load(path, weights_only=True)"),
    "of pickle": (lambda held: b"\x80\x04" + held, "it looks like one of torch.save"),
    "a list": (lambda held: b"[1, 2]", "it begins with b'[1, 2]'"),
    "other JSON": (lambda held: b'{"epoch": 3}', "it is JSON, and holds ['epoch']"),
    "no state in it": (changed(lambda found: found.update(state=7)), "it is JSON, and holds ['digest', 'file', 'state']"),
    "above the limit": (lambda held: held + b" " * 1000, "a state file holds 1.0 kB at most: is it another file?"),
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The file is named, with what is wrong; no other exception comes out of it."""
    monkeypatch.setattr(state_file, "MOST_BYTES", 10**6 if name == "deeply nested" else 1000)
    path = folder / "state.json"
    fb.save_state(STATE, path)
    spoil, words = UNREAD[name]
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match=re.escape(str(path))) as told:
        fb.load_state(path)
    assert words in str(told.value)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (1, "format 1, written by an older Forebay"),
        (2, "fb.rng and fb.video drew otherwise"),
        (4, "a newer one wrote it"),
        ("x", "format 'x'"),
    ],
)
def test_of_another_format(folder: Path, monkeypatch: pytest.MonkeyPatch, version: Any, words: str) -> None:
    """Written by an older or a newer Forebay: said, with the state's name in the checkpoint."""
    path = folder / "state.json"
    with monkeypatch.context() as other:
        other.setattr(state_file, "check_format", lambda *given: None)
        fb.save_state({"loader": {**STATE, "format": version}}, path)
    with pytest.raises(ValueError, match="loader is a state of") as told:
        fb.load_state(path)
    assert words in str(told.value)


def test_too_large_to_be_a_state(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not written at all; both sizes are named."""
    monkeypatch.setattr(state_file, "MOST_BYTES", 2000)
    with pytest.raises(ValueError, match=r"this state is 10\.3 kB as JSON, and a state file holds 2\.0 kB at most"):
        fb.save_state({**STATE, "text": "x" * 10_000}, folder / "state.json")


def test_a_missing_file(folder: Path) -> None:
    """As ``open`` says it."""
    with pytest.raises(FileNotFoundError):
        fb.load_state(folder / "state.json")


@given(st.binary(max_size=80))
@settings(max_examples=examples(100), deadline=None)
def test_no_bytes_raise_anything_else(tmp_path_factory: pytest.TempPathFactory, held: bytes) -> None:
    """Whatever lies in the file."""
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(b"{" + held)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        fb.load_state(path)
