"""``--shared``: a place in an S3 store, or a clear error."""

from __future__ import annotations

import pytest

from forebay_proxy.config.settings import Settings, as_json, load
from forebay_proxy.config.shared_place import SharedPlace
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.urls.shard_url import parse_origin_url


@pytest.mark.parametrize(
    ("text", "bucket", "prefix"),
    [
        ("s3://cluster-cache", "cluster-cache", ""),
        ("s3://cluster-cache/", "cluster-cache", ""),
        ("s3://cluster-cache/a/b", "cluster-cache", "a/b/"),
        ("s3://cluster-cache/a/b///", "cluster-cache", "a/b/"),
        ("s3://cluster-cache/ax", "cluster-cache", "ax/"),
        ("s3://c/p?endpoint=http://10.0.0.1:7480&profile=cache&region=eu", "c", "p/"),
    ],
)
def test_a_place(text: str, bucket: str, prefix: str) -> None:
    place = SharedPlace(text)
    assert (place.bucket, place.prefix) == (bucket, prefix)
    assert place.key("k") == f"{prefix}k"
    assert place.holds(place.shard("k"))


@pytest.mark.parametrize(
    "text",
    [
        "cluster-cache", "s3:/x", "s3://", "s3:///a", "https://host/bucket", "file:///tmp", "gs://bucket/x", "s3://user:pw@bucket/x",
        "s3://b/a/../c", "s3://b/x?versionId=3", "s3://b/x?unsigned=1", "s3://b/x?endpoint=ftp://x", "s3://b/x?nonsense=1",
        "s3://b/x?profile=a&profile=b", "s3://b/" + "x" * 9000,
    ],
)  # fmt: skip
def test_what_is_no_place_ends_the_start(text: str) -> None:
    """With the setting's name, and what would be one."""
    with pytest.raises(ConfigError) as caught:
        load({"shared": text}, {})
    assert "shared" in str(caught.value)
    assert "s3://" in str(caught.value)
    assert "pw" not in str(caught.value)


def test_nothing_of_the_options_is_shown() -> None:
    """``/v1/status`` and the page show settings to everybody who may ask."""
    settings = load({"shared": "s3://c/p?endpoint=http://10.0.0.1:7480&profile=secretive"}, {})
    assert settings.shared is not None
    for shown in (repr(settings), str(settings.shared), repr(settings.shared), str(as_json(settings)["shared"])):
        assert "secretive" not in shown
        assert "s3://c/p/" in shown


def test_its_own_objects_are_no_shards_for_it() -> None:
    place = SharedPlace("s3://c/p")
    assert place.holds(Shard.of(parse_origin_url("s3://c/p/x.tar")))
    for other in ("s3://c/q/x.tar", "s3://d/p/x.tar", "https://c/p/x.tar"):
        assert not place.holds(Shard.of(parse_origin_url(other)))


def test_none_by_default() -> None:
    assert Settings().shared is None
