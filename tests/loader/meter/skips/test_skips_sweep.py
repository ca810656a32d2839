"""Files of skips of ended trainings: bounded, the oldest go first; those of living ones stay, whatever their age."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay_loader.meter.page_files import PageName
from forebay_loader.meter.skips import skips_file
from forebay_loader.meter.skips.skips_file import WRITERS, SkipsFile, note_writer, sweep

OWN = PageName.of(os.getpid())


def left(folder: Path, name: str, *, age_s: float = 0.0, size: int = 10, writer: str | None = "ended") -> Path:
    """A file as a training leaves it; ``writer``: whether that lives still, or is "elsewhere"; None where nobody noted it."""
    assert OWN is not None
    path = folder / f"forebay-skips-{name}.jsonl"
    path.write_bytes(b"x" * size)
    when = path.stat().st_mtime - age_s
    os.utime(path, (when, when))
    if writer is not None:
        start = OWN.start_time + (0 if writer == "lives" else 1)  # the pid was used again since
        namespace = OWN.namespace + (1 if writer == "elsewhere" else 0)
        Path(f"{path}{WRITERS}").write_text(f"{namespace} {OWN.pid} {start}\n")
    return path


def there(folder: Path) -> set[str]:
    return {path.name[len("forebay-skips-") : -len(".jsonl")] for path in folder.glob("*.jsonl")}


def test_the_oldest_of_ended_trainings_go(tmp_path: Path) -> None:
    """With what was noted of them; by number, and by bytes."""
    for age in range(5):
        left(tmp_path, str(age), age_s=60.0 * age)
    sweep(tmp_path.as_posix(), kept_files=3)
    assert there(tmp_path) == {"0", "1", "2"}
    sweep(tmp_path.as_posix(), kept_bytes=20)
    assert there(tmp_path) == {"0", "1"}
    assert len(list(tmp_path.glob("forebay-*"))) == 4


@pytest.mark.parametrize(
    ("writer", "age_s", "stays"),
    [
        ("lives", 1e6, True),
        ("ended", 0.0, False),
        ("elsewhere", 3600.0, True),
        ("elsewhere", 1e6, False),
        (None, 3600.0, True),
        (None, 1e6, False),
    ],
)
def test_whose_training_may_live_stays(writer: str | None, age_s: float, stays: bool, tmp_path: Path) -> None:
    """However old and large its file is; of which nobody here can tell, for a day."""
    left(tmp_path, "one", age_s=age_s, writer=writer)
    sweep(tmp_path.as_posix(), kept_files=0)
    assert there(tmp_path) == ({"one"} if stays else set())


def test_what_is_none_of_them_stays(tmp_path: Path) -> None:
    """Links, folders, other names, and the file that is just begun."""
    (tmp_path / "forebay-skips-link.jsonl").symlink_to(tmp_path / "run.json")
    (tmp_path / "forebay-skips-folder.jsonl").mkdir()
    (tmp_path / "run.json").write_text("{}")
    kept = left(tmp_path, "begun")
    before = set(tmp_path.iterdir())
    sweep(tmp_path.as_posix(), keep=kept.as_posix(), kept_files=0)
    sweep((tmp_path / "nowhere").as_posix())
    assert set(tmp_path.iterdir()) == before


def test_the_first_skip_of_a_training_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process that has ended wrote goes, its own is noted once; a named file, and its folder, are nobody's to sweep."""
    monkeypatch.setattr(skips_file.sweep, "__kwdefaults__", {"keep": "", "kept_files": 0, "kept_bytes": 0})
    code = "from forebay_loader.meter.skips.skips_file import SKIPS_FILE; SKIPS_FILE.append({'key': 1}); print(SKIPS_FILE.path)"
    environ = {**os.environ, "FOREBAY_JOB": "earlier"}
    earlier = Path(subprocess.run([sys.executable, "-c", code], env=environ, check=True, capture_output=True, text=True).stdout.strip())
    assert earlier.exists()
    file = SkipsFile()
    assert [file.append({"key": number}) for number in range(3)] == [True] * 3
    assert there(earlier.parent) == {"job-1"}
    assert len(Path(file.path + WRITERS).read_text().splitlines()) == 1
    SkipsFile().append({"key": 4})
    assert len(Path(file.path).read_text().splitlines()) == 4


def test_a_worker_notes_its_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers come and go with each epoch; what they wrote stays as long as the process that started them lives."""
    assert OWN is not None
    path = tmp_path / "forebay-skips-one.jsonl"
    monkeypatch.setattr(skips_file, "training_pid", os.getppid)
    note_writer(path.as_posix())
    assert Path(f"{path}{WRITERS}").read_text().split()[1] == str(os.getppid())
