"""What the sidecar is told of folders of derived results."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay_loader.base import kept_folders
from forebay_loader.base.kept_folders import folders_now, note_folder
from forebay_loader.memos.stores.held import HELD, held_bytes
from forebay_proxy.wire.protocol.meter import MAX_FOLDER_NAME, MAX_FOLDERS


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_folders, "_KNOWN", {})


def test_folders_are_told_by_their_base_names(tmp_path: Path) -> None:
    """Two of one name apart, one by two paths once; what is not there is left out, and so is what is too much."""
    for path in ("a/x", "b/x", "c/" + "\n" + "y" * 100):
        (tmp_path / path).mkdir(parents=True)
        note_folder("memo", str(tmp_path / path), 100, lambda path: 7)
    note_folder("memo", str(tmp_path / "c" / ".." / "a" / "x"), 100, lambda path: 7)
    note_folder("memo", str(tmp_path / "none"), 100, lambda path: 7)
    found = folders_now()["memo"]
    assert sorted(name.partition("@")[0] for name in found) == ["?" + 31 * "y", "x", "x"]
    assert set(found.values()) == {(7, 100)}
    assert max(map(len, found)) <= MAX_FOLDER_NAME
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        note_folder("memo", str(tmp_path / str(number)), 100, lambda path: 7)
    assert len(folders_now()["memo"]) == MAX_FOLDERS


def test_what_a_store_takes(tmp_path: Path) -> None:
    """Blocks of its files; of a store that counts itself, what it counted."""
    (tmp_path / "00.mdb").write_bytes(bytes(100_000))
    assert 100_000 <= held_bytes(str(tmp_path)) < 200_000
    for told, size in (("", held_bytes(str(tmp_path))), ("12345", 12345)):
        (tmp_path / HELD).write_text(told)
        assert held_bytes(str(tmp_path)) == size
