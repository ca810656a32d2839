"""What comes out of task groups."""

from __future__ import annotations

import pytest

from forebay_proxy.core.errors import (
    ConfigError,
    DigestDiffers,
    OriginUnavailable,
    RangeNotSatisfiable,
    ShardError,
    ShardForbidden,
    ShardNotFound,
    bare,
    causes,
)

pytestmark = pytest.mark.each_python


def test_causes_of_an_error_and_of_groups() -> None:
    """An error is its own cause; of groups in groups, each single one, in order."""
    first, second, third = ConfigError("a"), ValueError("b"), KeyError("c")
    assert causes(first) == [first]
    assert causes(ExceptionGroup("", [ExceptionGroup("", [first]), second, ExceptionGroup("", [third])])) == [first, second, third]


@pytest.mark.parametrize("error", [
    ShardForbidden("s3://b/k", "403", next_step="ask", status=401), DigestDiffers("s3://b/k", "other bytes", again=True),
    RangeNotSatisfiable("s3://b/k", "beyond", length=7), OriginUnavailable("s3://b/k", "503", retry_after_s=3.0, throttled=True),
])  # fmt: skip
def test_a_copy_says_the_same_without_frames(error: ShardError) -> None:
    """Class, words and everything that was noted on it; no traceback, no cause, nothing that came before."""
    try:
        try:
            raise ValueError
        except ValueError as cause:
            error.add_note("noted")
            raise error from cause
    except ShardError as raised:
        copy = bare(raised)
    assert (type(copy), str(copy), copy.args, vars(copy)) == (type(error), str(error), error.args, vars(error))
    assert (copy.__traceback__, copy.__cause__, copy.__context__) == (None, None, None)
    assert copy is not error


def test_braces_that_are_no_range_are_what_is_wrong() -> None:
    """They are asked for as they stand; the 404 says what was meant instead of what to ask the origin."""
    assert ShardNotFound("s3://b/%7B000-999%7D.tar", "404").step == "its braces were taken literally: did you mean {000..999}?"
    assert ShardNotFound("s3://b/000.tar", "404").step == ShardNotFound.usual_step
