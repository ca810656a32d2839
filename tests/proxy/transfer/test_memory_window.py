"""The memory window: exact bytes, or FellBehind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.errors import FellBehind
from forebay_proxy.transfer.memory_window import MemoryWindow

DATA = bytes(index * 31 % 251 for index in range(4000))


@given(
    st.integers(0, 100),
    st.integers(10, 300),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 120)), max_size=120),
)
def test_every_reader_gets_exact_bytes_or_falls_behind(start: int, capacity: int, steps: list[tuple[int, int]]) -> None:
    """A fetch and three readers in any order; the window never holds more than its capacity, or one piece."""
    window, positions = MemoryWindow(start), [start, start, start]
    for who, size in steps:
        if who == 3:
            piece = DATA[window.end : window.end + size]
            if piece and window.room(len(piece), capacity, max(positions)):
                window.append(piece)
                assert len(window) <= max(capacity, len(piece))
            continue
        try:
            view = window.read(positions[who])
        except FellBehind:
            assert positions[who] < window.start
            positions[who] = window.end  # it goes on elsewhere
            continue
        if view is None:
            assert positions[who] == window.end
            continue
        part = view[:size]
        assert bytes(part) == DATA[positions[who] : positions[who] + len(part)]
        positions[who] += len(part)


def test_only_what_the_fastest_has_passed_is_dropped() -> None:
    """So a lone reader never falls behind: the fetch waits."""
    window = MemoryWindow(0)
    window.append(b"a" * 10)
    assert not window.room(10, 15, fastest=9)
    assert window.room(10, 15, fastest=10)


def test_an_empty_window_takes_anything() -> None:
    """A piece larger than the capacity passes, alone."""
    assert MemoryWindow(0).room(1000, 10, fastest=0)


def test_the_end_of_the_window_is_no_error() -> None:
    """The reader waits there."""
    assert MemoryWindow(7).read(7) is None


def test_who_is_before_the_window_fell_behind() -> None:
    """It hears where the window is."""
    window = MemoryWindow(5)
    window.append(b"x")
    with pytest.raises(FellBehind, match="moved on to 5"):
        window.read(4)
