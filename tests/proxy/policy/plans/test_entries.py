"""What one message announces, as names and as shards with their credentials."""

from __future__ import annotations

import pytest

from forebay_proxy.policy.plans.entries import Entries
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.wire.protocol.plan import ReaderName
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl

TEXTS = [f"https://h.example/set/{number:03d}.tar" for number in range(600)]
HEADERS = (("Authorization", "Bearer t"),)
ONE, OTHER = ReaderName("job", "0", "0", "1.1"), ReaderName("job", "0", "1", "1.1")


def test_headers_go_to_the_first_host_only() -> None:
    """Of a list and of a pattern; a first one without a host is refused."""
    texts = [*TEXTS[:2], "https://other.example/a.tar"]
    plans = PlanRegistry(lambda: 0.0)
    plans.replace(ONE, Entries(texts, HEADERS))
    plans.replace(OTHER, Entries([], HEADERS, pattern="https://{one,two}.example/{0..1}.tar", indices=[2, 0, 3]))
    one, other = plans.all()
    assert [plans.shard_at(one, index).name for index in range(3)] == texts
    assert [bool(plans.shard_at(one, index).credential) for index in range(3)] == [True, True, False]
    assert [bool(plans.shard_at(other, index).credential) for index in range(3)] == [True, False, True]
    with pytest.raises(InvalidShardUrl):
        Entries(["ftp://h/a.tar"], HEADERS)
    with pytest.raises(InvalidShardUrl, match="entry 2"):
        plans.replace(ONE, Entries([], pattern="{s3,ftp}://b/{0..9}.tar", indices=[3, 4, 15]))
    assert (len(one), plans.storage.entries_held) == (3, 6)


def test_another_signature_is_the_readers_own() -> None:
    """The name is the same, the bytes are asked for with what each reader brought."""
    plans = PlanRegistry(lambda: 0.0)
    for reader, signature in ((ONE, "a"), (OTHER, "b")):
        plans.replace(reader, Entries([f"https://h/x.tar?X-Amz-Signature={signature}"]))
    assert len(plans.storage.mentions) == 1
    assert [plans.shard_at(plan, 0).credential.signature for plan in plans.all()] == ["X-Amz-Signature=a", "X-Amz-Signature=b"]


def test_what_is_appended_keeps_its_own_credential() -> None:
    """Neither does a later one dress the shards before it, nor is it dressed by theirs."""
    for first, then in (((), HEADERS), (HEADERS, ())):
        plans = PlanRegistry(lambda: 0.0)
        plans.replace(ONE, Entries([TEXTS[0]], first))
        plans.append(ONE, Entries([TEXTS[1]], then))
        (plan,) = plans.all()
        assert [plans.shard_at(plan, index).credential.headers for index in range(2)] == [first, then]
