"""Files of skips of other runs: bounded, the oldest go first; what was written to within a day stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay_loader.meter.skips import skips_file
from forebay_loader.meter.skips.skips_file import SkipsFile, sweep

DAY_S = 24 * 3600.0


def left(folder: Path, name: str, age_s: float) -> Path:
    """A file as a run leaves it."""
    path = folder / f"forebay-skips-{name}.jsonl"
    path.write_bytes(b"x" * 10)
    when = path.stat().st_mtime - age_s
    os.utime(path, (when, when))
    return path


def there(folder: Path) -> set[str]:
    return {path.name[len("forebay-skips-") : -len(".jsonl")] for path in folder.glob("*.jsonl")}


def test_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number, and by bytes; what may still be written to stays."""
    for day in range(5):
        left(tmp_path, str(day), 0.9 * DAY_S * day)
    monkeypatch.setattr(skips_file, "KEPT_FILES", 3)
    sweep(tmp_path.as_posix())
    assert there(tmp_path) == {"0", "1", "2"}
    monkeypatch.setattr(skips_file, "KEPT_BYTES", 0)
    sweep(tmp_path.as_posix())
    assert there(tmp_path) == {"0", "1"}


def test_what_is_none_of_them_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links, folders, other names, and the file that is just begun."""
    monkeypatch.setattr(skips_file, "KEPT_FILES", 0)
    (tmp_path / "forebay-skips-link.jsonl").symlink_to(tmp_path / "run.json")
    (tmp_path / "forebay-skips-folder.jsonl").mkdir()
    (tmp_path / "run.json").write_text("{}")
    kept = left(tmp_path, "begun", 9 * DAY_S)
    before = set(tmp_path.iterdir())
    sweep(tmp_path.as_posix(), keep=kept.as_posix())
    sweep((tmp_path / "nowhere").as_posix())
    assert set(tmp_path.iterdir()) == before


def test_the_first_skip_of_a_run_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once; and the file is the run's own."""
    monkeypatch.setattr(skips_file, "KEPT_FILES", 0)
    file = SkipsFile()
    folder = Path(file.path).parent
    folder.mkdir(mode=0o700, exist_ok=True)
    left(folder, "earlier", 9 * DAY_S)
    assert [file.append({"key": number}) for number in range(3)] == [True] * 3
    assert there(folder) == {"job-1"}
    left(folder, "other", 9 * DAY_S)
    assert SkipsFile().append({"key": 4})
    assert there(folder) == {"job-1", "other"}
    assert len(Path(file.path).read_text().splitlines()) == 4
