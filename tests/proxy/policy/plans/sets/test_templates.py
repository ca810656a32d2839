"""Shards that are made on demand."""

from __future__ import annotations

import gc

import pytest

from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.policy.plans.sets.templates import Listed
from forebay_proxy.policy.plans.shard_ids import ShardIds
from forebay_proxy.wire.protocol.plan import ReaderName
from forebay_proxy.wire.urls.quoting import InvalidShardUrl

TEXTS = [f"https://h.example/set/{number:03d}.tar" for number in range(600)]
HEADERS = (("Authorization", "Bearer t"),)
ONE, OTHER = ReaderName("job", "0", "0", "1.1"), ReaderName("job", "0", "1", "1.1")


def test_a_list_is_a_sequence_of_shards() -> None:
    """By index and by slice; the credential is of the first one's host."""
    listed = Listed([*TEXTS[:2], "https://other.example/a.tar"], HEADERS)
    assert [shard.name for shard in listed[1:]] == [TEXTS[1], "https://other.example/a.tar"]
    assert [bool(shard.credential) for shard in listed] == [True, True, False]
    with pytest.raises(IndexError):
        listed[3]
    assert not Listed([], HEADERS)
    with pytest.raises(InvalidShardUrl):
        Listed(["ftp://h/a.tar"], HEADERS)


def test_a_list_taken_twice_is_kept_once() -> None:
    """The second one's texts go one by one, and its credential is its reader's own; all of it goes in the end."""
    plans = PlanRegistry(lambda: 0.0)
    first, second = Listed(list(TEXTS), HEADERS), Listed(list(reversed(TEXTS)))
    plans.replace(ONE, first.picked())
    held = plans.shard_ids.held_bytes
    plans.replace(OTHER, second.picked())
    assert plans.shard_ids.held_bytes == held == sum(map(len, TEXTS))
    assert {second.template.block.text(index) for index in range(600)} == {""}
    one, other = plans.all()
    assert (plans.shard_at(one, 0).credential.headers, plans.shard_at(other, 599).credential.headers) == (HEADERS, ())
    assert plans.shard_at(one, 0).name == plans.shard_at(other, 599).name == TEXTS[0]
    plans.withdraw(ONE)
    plans.storage.tidy()
    assert [plans.shard_at(other, index).name for index in range(600)] == TEXTS[::-1]
    plans.withdraw(OTHER)
    plans.storage.tidy()
    assert (len(plans.shard_ids), plans.shard_ids.held_bytes) == (0, 0)
    assert {first.template.block.text(index) for index in range(600)} == {""}


def test_another_signature_is_the_readers_own() -> None:
    """The name is the same, the bytes are asked for with what each reader brought."""
    plans = PlanRegistry(lambda: 0.0)
    for reader, signature in ((ONE, "a"), (OTHER, "b")):
        plans.replace(reader, Listed([f"https://h/x.tar?X-Amz-Signature={signature}"]).picked())
    assert len(plans.shard_ids) == 1
    assert [plans.shard_at(plan, 0).credential.signature for plan in plans.all()] == ["X-Amz-Signature=a", "X-Amz-Signature=b"]


def test_what_is_appended_keeps_its_own_credential() -> None:
    """Neither does a later one dress the shards before it, nor is it dressed by theirs."""
    for first, then in (((), HEADERS), (HEADERS, ())):
        plans = PlanRegistry(lambda: 0.0)
        plans.replace(ONE, Listed([TEXTS[0]], first).picked())
        plans.append(ONE, Listed([TEXTS[1]], then).picked())
        (plan,) = plans.all()
        assert [plans.shard_at(plan, index).credential.headers for index in range(2)] == [first, then]


def test_a_list_is_nothing_to_the_garbage_collector() -> None:
    """However long: no object that it would have to walk through is made for an entry."""
    shard_ids = ShardIds()
    listed = Listed(list(TEXTS))
    gc.collect()
    before = len(gc.get_objects())
    numbers = shard_ids.ids(listed.picked())
    assert len(gc.get_objects()) - before < 50
    assert shard_ids.name(numbers[7]) == TEXTS[7]
