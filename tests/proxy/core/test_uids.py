"""Whose a uid is: everybody has one of their own, unless a user namespace's map leaves somebody out."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay_proxy.core.uids import anybodys_uid

WHOLE = "         0          0 4294967295\n"


@pytest.mark.parametrize(("text", "uid"), [
    (WHOLE, None),
    ("0 0 1000\n1000 1000 4294966295\n", None),
    ("65534 1000 1\n", 65000),
    ("0 1000 1\n1 100000 65536\n", 65000),
    ("", 65000),
    ("nonsense\n", 65000),
])  # fmt: skip
def test_only_a_whole_map_gives_everybody_a_number(tmp_path: Path, text: str, uid: int | None) -> None:
    """The number of the others is the kernel's overflow uid, whatever an administrator made it."""
    (tmp_path / "uid_map").write_text(text)
    (tmp_path / "overflow").write_text("65000\n")
    assert anybodys_uid(tmp_path / "uid_map", tmp_path / "overflow") == uid


def test_what_is_not_told(tmp_path: Path) -> None:
    """A kernel without user namespaces has whole maps; without /proc nothing vouches for 65534."""
    assert anybodys_uid(tmp_path / "uid_map", tmp_path / "overflow") is None
    assert anybodys_uid(tmp_path / "no proc/uid_map", tmp_path / "overflow") == 65534
