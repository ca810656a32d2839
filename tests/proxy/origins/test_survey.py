"""Lengths, asked as the sidecar asks."""

from __future__ import annotations

import pytest
from support.scripted_origin import ScriptedOrigin

from forebay_proxy.config.settings import Settings, load
from forebay_proxy.core.errors import ConfigError, ForebayError, ShardNotFound
from forebay_proxy.core.shard import Shard
from forebay_proxy.origins.survey import sample_of, surveyed
from forebay_proxy.wire.urls.shard_url import parse_origin_url


def of(origin: ScriptedOrigin, count: int) -> list[Shard]:
    return [Shard.of(parse_origin_url(origin.url(f"/{number}.tar"))) for number in range(count)]


def allowing(origin: ScriptedOrigin) -> Settings:
    return load({"allow_origin": (origin.base,)}, {})


async def test_lengths_without_a_byte() -> None:
    """HEAD only; the mean stands for those that were not asked."""
    async with ScriptedOrigin() as origin:
        for number in range(10):
            origin.put(f"/{number}.tar", b"x" * (number + 1))
        found = await surveyed(of(origin, 10), allowing(origin), 5, {})
        assert {seen.method for seen in origin.requests} == {"HEAD"}
    assert sorted(found.lengths.values()) == [2, 4, 6, 8, 10]
    assert (found.mean_bytes, found.dataset_bytes) == (6, 60)


async def test_the_first_that_cannot_be_had_is_named() -> None:
    """With the origin's own answer."""
    async with ScriptedOrigin() as origin:
        origin.put("/0.tar", b"x")
        with pytest.raises(ShardNotFound, match=r"/1\.tar"):
            await surveyed(of(origin, 2), allowing(origin), 2, {})


async def test_the_guard_stands_here_too() -> None:
    """A loopback origin is asked only where it is allowed."""
    async with ScriptedOrigin() as origin:
        origin.put("/0.tar", b"x")
        with pytest.raises(ForebayError) as caught:
            await surveyed(of(origin, 1), load({}, {}), 1, {})
        assert not isinstance(caught.value, ConfigError)
        assert not origin.requests


def test_a_sample_is_spread_evenly() -> None:
    """Not the first ones, nor the last."""
    listed = [Shard.of(parse_origin_url(f"s3://b/{number}.tar")) for number in range(100)]
    assert [shard.name for shard in sample_of(listed, 4)] == ["s3://b/12.tar", "s3://b/37.tar", "s3://b/62.tar", "s3://b/87.tar"]
    assert sample_of(listed, 100) == listed
