"""Whatever is said is heard as it was said; whatever is no frame is told apart, and never read as something else."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.movers import frames
from forebay_proxy.movers.frames import BadFrame, Frame, Gone, Hand, Land, decode, encode

KINDS = [kind for kind in vars(frames).values() if isinstance(kind, type) and hasattr(kind, "DESCRIPTORS")]
_SIZES = {"B": 8, "I": 32, "Q": 64}


def frames_of(kind: type[Frame]) -> st.SearchStrategy[Frame]:
    sizes = iter(kind.NUMBERS.format[1:])
    values = {
        field.name: st.text(max_size=8)
        if field.type == "str"
        else (next(sizes), st.booleans())[1]
        if field.type == "bool"
        else st.integers(0, 2 ** _SIZES[next(sizes)] - 1)
        for field in dataclasses.fields(kind)
    }
    return st.builds(kind, **values)


ANY_FRAME = st.one_of(*map(frames_of, KINDS))


@given(ANY_FRAME)
def test_frame_comes_back_as_it_was(frame: Frame) -> None:
    assert decode(encode(frame), frame.DESCRIPTORS) == frame


@given(ANY_FRAME, st.data())
def test_part_of_a_frame_and_more_than_a_frame_are_garbage(frame: Frame, data: st.DataObject) -> None:
    message = encode(frame)
    for wrong in (message[: data.draw(st.integers(0, len(message) - 1))], message + data.draw(st.binary(min_size=1, max_size=9))):
        with pytest.raises(BadFrame):
            decode(wrong, frame.DESCRIPTORS)


@given(st.binary(max_size=80), st.integers(0, 3))
def test_garbage_is_a_bad_frame_or_a_frame_that_says_the_same(message: bytes, descriptors: int) -> None:
    """Nothing else is raised, and what is read is what was written."""
    try:
        frame = decode(message, descriptors)
    except BadFrame:
        return
    assert encode(frame) == message


@given(ANY_FRAME)
def test_frame_without_its_descriptors_is_garbage(frame: Frame) -> None:
    with pytest.raises(BadFrame):
        decode(encode(frame), frame.DESCRIPTORS + 1)


@pytest.mark.parametrize("frame", [Gone(-1), Gone(2**64), Land(1, 2**32, 0, 0, False), Hand(1, True, "x" * 70_000, "", "")])
def test_what_does_not_fit_is_not_sent(frame: Frame) -> None:
    with pytest.raises(BadFrame):
        encode(frame)
