"""What an origin refused is not asked again at once."""

from __future__ import annotations

import pytest
from support.house import FakeClock

from forebay_proxy.cache.versions import refusals
from forebay_proxy.cache.versions.refusals import REMEMBERED_S, RefusalCache
from forebay_proxy.core.errors import OriginUnavailable, ShardForbidden, ShardNotFound


@pytest.mark.parametrize("error", [ShardForbidden("s", "no"), ShardNotFound("s", "no")])
def test_a_refusal_is_told_again_until_its_time_is_over(error: Exception) -> None:
    """To that credential, and for that shard."""
    clock = FakeClock()
    known = RefusalCache(clock)
    known.remember("s", "mac", error)  # type: ignore[arg-type]
    known.recall("s", "another")
    known.recall("t", "mac")
    with pytest.raises(type(error)):
        known.recall("s", "mac")
    clock.advance(REMEMBERED_S)
    known.recall("s", "mac")
    assert len(known) == 0


def test_trouble_is_no_refusal() -> None:
    """It may be over at once."""
    known = RefusalCache(FakeClock())
    known.remember("s", "", OriginUnavailable("s", "503"))
    known.recall("s", "")


def test_a_refusal_that_is_said_again_lasts_from_then_on() -> None:
    """And those before it still leave in the order of their ends."""
    clock = FakeClock()
    known = RefusalCache(clock)
    for name in "sts":
        known.remember(name, "", ShardNotFound(name, "no"))
        clock.advance(REMEMBERED_S / 4)
    clock.advance(REMEMBERED_S / 2)
    known.recall("t", "")
    with pytest.raises(ShardNotFound):
        known.recall("s", "")


def test_the_refusals_kept_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up names cost no memory without end."""
    monkeypatch.setattr(refusals, "REMEMBERED_MOST", 2)
    known = RefusalCache(FakeClock())
    for name in "abc":
        known.remember(name, "", ShardNotFound(name, "no"))
    assert len(known) == 1
