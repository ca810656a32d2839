"""The open sample: files of one key together, and what becomes of a file that does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from forebay_loader.samples.open_sample import LeaveReading, OpenSample

URL = "https://o/a.tar"


def reraise(error: Exception) -> bool:
    raise error


def added(opened: OpenSample, *names: str) -> list[dict[str, Any]]:
    """The samples that were complete meanwhile."""
    return [sample for name in names for sample in opened.add(name, name.encode(), URL, None)]


def test_a_sample_ends_with_the_first_file_of_another_key() -> None:
    """And the last one with ``flush``."""
    opened = OpenSample(reraise)
    assert added(opened, "a.jpg", "a.cls", "b.jpg") == [{"__key__": "a", "__url__": URL, "jpg": b"a.jpg", "cls": b"a.cls"}]
    assert list(opened.flush()) == [{"__key__": "b", "__url__": URL, "jpg": b"b.jpg"}]
    assert list(opened.flush()) == []


def test_a_file_twice_is_the_handlers() -> None:
    """True passes it over, False ends the reading quietly, an error ends it with that."""
    for answer, leaves in ((True, False), (False, True)):
        opened = OpenSample(lambda _, answer=answer: answer)  # type: ignore[misc]
        if leaves:
            with pytest.raises(LeaveReading) as caught:
                added(opened, "a.jpg", "a.jpg")
            assert caught.value.error is None
        else:
            assert added(opened, "a.jpg", "a.jpg") == []
    with pytest.raises(LeaveReading) as caught:
        added(OpenSample(reraise), "a.jpg", "a.jpg")
    assert "duplicate file name in tar file jpg" in str(caught.value.error)


def test_a_sample_that_is_marked_bad_is_dropped() -> None:
    """As webdataset does; the reader is told that it may be, so that it looks closer from then on."""
    opened = OpenSample(reraise)
    assert added(opened, "a.jpg", "a.__bad__", "b.jpg") == []
    assert opened.odd


@pytest.mark.parametrize(("name", "stem"), [("a.jpg", b"a"), ("d/a.jpg", b"d/a"), ("\udcff.jpg", None)])
def test_the_stem_is_the_key_as_headers_spell_it(name: str, stem: bytes | None) -> None:
    """None where it is no plain text, so that no header is taken for its own unseen."""
    opened = OpenSample(reraise)
    list(opened.add(name, b"", URL, None))
    assert opened.stem == stem
