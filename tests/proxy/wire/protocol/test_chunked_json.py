"""Large bodies in pieces say what they say in one piece."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_proxy.wire.protocol import chunked_json
from forebay_proxy.wire.protocol.plan import InvalidPlan, decode

LETTERS = '"\\indces: [],{}01 -'
values = st.recursive(
    st.one_of(st.none(), st.integers(-3, 300), st.floats(0, 9), st.text(LETTERS, max_size=20), st.just("indices")),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(["indices", "set", "a"]), inner, max_size=3)),
    max_leaves=12,
)


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    """So that small bodies have many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_json, "PIECE_BYTES", 16)
        yield


@given(st.lists(st.binary(max_size=40)))
def test_lines_are_those_of_the_body(parts: list[bytes]) -> None:
    """All that are not blank, in order, wherever the pieces end."""
    body = b"\n".join(parts)
    assert [line for piece in chunked_json.lines(body) for line in piece] == [line for line in body.split(b"\n") if line.strip()]


@settings(deadline=None)
@given(values, st.sampled_from([None, 1, "\t"]))
def test_a_list_is_cut_out_only_where_it_is_one(value: object, indent: int | str | None) -> None:
    """What is left, with the list put back, is the whole; where the parts are no numbers of their own, nothing is taken for any."""
    body = json.dumps(value, indent=indent).encode()
    cut = chunked_json.cut_list(body, "indices")
    if cut is None:
        return
    assert cut.rest == body[: cut.begin] + b"null" + body[cut.end :]
    try:
        found = [number for part in chunked_json.numbers(body, cut.begin, cut.end) for number in part]
        rest = json.loads(cut.rest)
    except ValueError:
        return
    if isinstance(rest, dict) and rest.get("indices") == [None] and all(type(number) is int for number in found):
        assert isinstance(value, dict)
        assert value["indices"] == found


@settings(deadline=None)
@given(st.lists(st.integers(0, 250), max_size=60), st.sampled_from([",", ", ", " ,\n"]), st.sampled_from(["s3://b/{0..199}.tar", "{", "x"]))
def test_indices_say_the_same_in_pieces(indices: list[int], comma: str, text: str) -> None:
    """Taken or refused, and for the same entry."""
    body = f'{{"epoch": 3, "set": {json.dumps(text)}, "indices": [{comma.join(map(str, indices))}]}}'.encode()
    told = []
    for size in (1 << 20, 16):
        chunked_json.PIECE_BYTES = size
        try:
            plan = decode("application/json", body, expand=False)
            told.append((plan.epoch, plan.set, plan.at, list(plan.indices or ())))
        except InvalidPlan as error:
            told.append(str(error))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "entries",
    ["1,,2", ",1", "1,2,3,4,5,6,7,8,9,10,", "1 2", "01", "[1", '"a"', "1.5", "-1", "1,2,3,4,5,6,7,8,9,10,null", " " * 15 + ",1,2,3,4,5"],
)
def test_what_is_no_list_of_numbers_is_refused(entries: str) -> None:
    """In one piece or in several, whatever stands between the brackets."""
    body = f'{{"set": "s3://b/{{0..199}}.tar", "indices": [{entries}]}}'.encode()
    with pytest.raises(InvalidPlan):
        decode("application/json", body, expand=False)


def test_a_field_that_is_there_twice_is_the_last_one() -> None:
    """As JSON has it, however it is spelt."""
    for first, second in (("indices", "indices"), ("indices", "\\u0069ndices"), ("\\u0069ndices", "indices")):
        body = f'{{"set": "s3://b/{{0..9}}.tar", "{first}": [1, 2], "{second}": [3]}}'.encode()
        assert list(decode("application/json", body, expand=False).indices or ()) == [3]
