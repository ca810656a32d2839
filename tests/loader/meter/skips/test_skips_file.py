"""The file of skips: whole lines, bounded, private, never a secret's place."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_loader.base.counters import counters
from forebay_loader.meter.skips.skips_file import LINE_BYTES, SkipsFile, line_of


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(["shard", "key", "error", "message"]), st.text(max_size=40).map(lambda text: 20 * text), max_size=4))
def test_a_line_is_one_short_line(said: dict[str, object]) -> None:
    """Whatever texts hold: one newline, at its end; JSON before it."""
    line = line_of(said)
    assert len(line) <= LINE_BYTES
    assert line.count(b"\n") == 1
    assert set(json.loads(line)) == set(said)


def test_it_lies_beside_the_run_file_and_is_private() -> None:
    """Under the job's name, for its owner alone."""
    file = SkipsFile()
    assert file.append({"stage": "map"})
    assert file.path == f"{os.environ['XDG_RUNTIME_DIR']}/forebay-skips-job-1.jsonl"
    assert stat.S_IMODE(os.stat(file.path).st_mode) == 0o600


def test_a_named_file_is_appended_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs, one file."""
    monkeypatch.setenv("FOREBAY_SKIPS_FILE", str(tmp_path / "mine"))
    for number in (1, 2):
        assert SkipsFile().append({"key": number})
    assert [json.loads(line) for line in (tmp_path / "mine").read_text().splitlines()] == [{"key": 1}, {"key": 2}]


def test_a_full_file_says_so_and_the_rest_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded: what no longer fits is a number, and the last line says that there was more."""
    path = tmp_path / "mine"
    monkeypatch.setenv("FOREBAY_SKIPS_FILE", str(path))
    file = SkipsFile(most_bytes=3 * LINE_BYTES)
    written = sum(file.append({"key": "k" * 300}) for _ in range(100))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert path.stat().st_size <= 3 * LINE_BYTES
    assert [("full" in line) for line in lines] == [False] * written + [True]
    assert counters()["skips_unwritten"] == 100 - written


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_what_is_no_file_is_not_written(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, without an error: a run does not end because of its list."""
    path = tmp_path / "mine"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path)
    monkeypatch.setenv("FOREBAY_SKIPS_FILE", str(path))
    assert not SkipsFile().append({"key": 1})
    assert counters()["skips_unwritten"] == 1
    assert not (tmp_path / "elsewhere").exists()
