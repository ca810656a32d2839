"""Files of skips of other runs: bounded, the oldest go first; what was written to within a day stays."""

from __future__ import annotations

import os
from pathlib import Path

from forebay_loader.meter.skips.skips_file import KEPT_BYTES, KEPT_FILES, SkipsFile, sweep

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


def filled(folder: Path, number: int = KEPT_FILES) -> set[str]:
    """So many files of now."""
    names = {f"new-{each}" for each in range(number)}
    for name in names:
        left(folder, name, 0.0)
    return names


def test_the_oldest_go(tmp_path: Path) -> None:
    """By number, and by bytes; what may still be written to stays."""
    others = filled(tmp_path, KEPT_FILES - 3)
    files = [left(tmp_path, str(day), 0.9 * DAY_S * day) for day in range(5)]
    sweep(tmp_path.as_posix())
    assert there(tmp_path) == others | {"0", "1", "2"}
    os.truncate(files[0], KEPT_BYTES)
    sweep(tmp_path.as_posix())
    assert there(tmp_path) == others | {"0", "1"}


def test_what_is_none_of_them_stays(tmp_path: Path) -> None:
    """Links, folders, other names, and the file that is just begun."""
    filled(tmp_path)
    (tmp_path / "forebay-skips-link.jsonl").symlink_to(tmp_path / "run.json")
    (tmp_path / "forebay-skips-folder.jsonl").mkdir()
    (tmp_path / "run.json").write_text("{}")
    kept = left(tmp_path, "begun", 9 * DAY_S)
    before = set(tmp_path.iterdir())
    sweep(tmp_path.as_posix(), keep=kept.as_posix())
    sweep((tmp_path / "nowhere").as_posix())
    assert set(tmp_path.iterdir()) == before


def test_the_first_skip_of_a_run_sweeps() -> None:
    """Once; and the file is the run's own."""
    file = SkipsFile()
    folder = Path(file.path).parent
    folder.mkdir(mode=0o700, exist_ok=True)
    others = filled(folder)
    left(folder, "earlier", 9 * DAY_S)
    assert [file.append({"key": number}) for number in range(3)] == [True] * 3
    assert there(folder) == others | {"job-1"}
    left(folder, "other", 9 * DAY_S)
    assert SkipsFile().append({"key": 4})
    assert there(folder) == others | {"job-1", "other"}
    assert len(Path(file.path).read_text().splitlines()) == 4
