"""The sample index, client side: what a process keeps."""

from __future__ import annotations

from support.indexes import indexed
from support.tarmaking import written

from forebay_loader.samples.index_client import Indexed, Indexes, source_in


def test_a_process_keeps_no_more_than_it_may() -> None:
    """The longest unused goes; a new version takes the place of the old one; the last one stays, however large."""
    kept, index = Indexes(most_bytes=100), indexed(written([("a.jpg", b"x")]))
    a, b, c = (source_in(f"file:///{name}.tar") for name in "abc")
    assert a is not None
    assert b is not None
    assert c is not None
    kept.put(a, Indexed(index, '"1"'), 40)
    kept.put(b, Indexed(index, '"2"'), 40)
    kept.put(a, Indexed(index, '"3"'), 40)
    assert kept.get(a) == Indexed(index, '"3"')
    kept.put(c, Indexed(index, '"4"'), 40)
    assert (kept.get(b), kept.get(a) is None, kept.get(c) is None) == (None, False, False)
    kept.put(b, Indexed(index, '"5"'), 1000)
    assert [kept.get(one) is not None for one in (a, b, c)] == [False, True, False]
