"""Where a message begins among all that its reader announced."""

from __future__ import annotations

from typing import Any

import pytest

from forebay_proxy.wire.protocol.plan import InvalidPlan, decode, encode


@pytest.mark.parametrize(
    "how", [{"shards": ["s3://b/1.tar"]}, {"shards": ["s3://b/" + "x" * 200] * 6000}, {"set": "s3://b/{0..9}.tar", "indices": [3]}]
)
def test_it_travels_in_every_form(how: dict[str, Any]) -> None:
    """As JSON, as lines and with indices; left out it is not told."""
    told, untold = encode(**how, at=17), encode(**how)
    assert decode(told.content_type, told.body, told.query).at == 17
    assert decode(untold.content_type, untold.body, untold.query).at is None


@pytest.mark.parametrize("at", ["-1", "1.5", '"3"', "true", "[]", str(1 << 60)])
def test_nonsense_is_refused(at: str) -> None:
    """With the name of the field."""
    with pytest.raises(InvalidPlan, match="at is not a whole number"):
        decode("application/json", b'{"shards": [], "at": %s}' % at.encode())


def test_nonsense_in_a_query_is_refused() -> None:
    """For lines as well."""
    with pytest.raises(InvalidPlan, match="at is not a whole number"):
        decode("application/x-ndjson", b'"s3://b/1.tar"\n', "at=x")
