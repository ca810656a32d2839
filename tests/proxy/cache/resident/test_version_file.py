"""The file of one shard version, in the books."""

from __future__ import annotations

from typing import Any

from forebay_proxy.cache.resident.version_file import VersionFile


def test_a_file_that_was_made_is_there_and_open() -> None:
    """Both facts change together."""
    stored, file = VersionFile(), object()
    made: Any = file
    stored.made(made)
    assert stored.file is file
    assert stored.filed


def test_nothing_is_counted_of_a_removed_file() -> None:
    """Neither for what was stored, nor for what was on its way; when its segments landed is what others clear."""
    stored, file = VersionFile(), object()
    made: Any = file
    stored.made(made)
    stored.charged_bytes = 100
    stored.writing.add(3)
    stored.removed()
    assert (stored.file, stored.filed, stored.charged_bytes, stored.writing) == (None, False, 0, set())


def test_what_a_log_shows() -> None:
    """Whether it is open, what it holds, and whether it is claimed."""
    stored = VersionFile()
    assert repr(stored) == "<VersionFile none, 0 bytes, 0 being written>"
    stored.filed = stored.claimed = True
    stored.charged_bytes = 7
    assert repr(stored) == "<VersionFile closed, 7 bytes, 0 being written, claimed>"
