"""One name for each file, and which of the target's options travel."""

from __future__ import annotations

import pytest

from forebay_loader.files.target import Target, file_name

URL = "https://h/dir/a%20b.tar"
TARGET = "/https/h/dir/a%20b.tar"


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (URL, f"forebay:/{TARGET}"),
        (f"forebay::{URL}", f"forebay:/{TARGET}"),
        (f"forebay:/{TARGET}", f"forebay:/{TARGET}"),
        (TARGET[1:], f"forebay:/{TARGET}"),
        ("s3://b/a b.tar", "forebay://s3/b/a%20b.tar"),
        ("hf://datasets/org/name@v1/a.tar", "forebay://hf/datasets/org/name@v1/a.tar"),
        ("forebay://", ""),
    ],
)
def test_a_file_has_one_name(written: str, name: str) -> None:
    """However it is written; the name is the sidecar's path, and stays itself."""
    found = file_name(written)
    assert found == name
    assert file_name(found) == found
    assert file_name([written, URL]) == [name, f"forebay:/{TARGET}"]


def source(url: str, **options: object) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The URL the sidecar is asked for, and the headers it is given."""
    found = Target(url.partition(":")[0], options, "").source(url)[1]
    return found.url.text(), found.headers


@pytest.mark.parametrize("written", [URL, "h/dir/a%20b.tar", "/h/dir/a%20b.tar", ""])
def test_a_chain_hands_in_the_path_alone(written: str) -> None:
    """Of its target's protocol; or nothing, and what is meant beside it."""
    assert Target("https", {}, URL).source(written)[0] == f"forebay:/{TARGET}"


def test_options_of_the_target_count() -> None:
    """Headers of http, a hub's token, an endpoint of s3; keys of s3 do not travel."""
    assert source(URL, headers={"Authorization": "a"}) == (URL, (("Authorization", "a"),))
    assert source(URL, client_kwargs={"headers": {"X-Key": "k"}}) == (URL, (("X-Key", "k"),))
    assert source("hf://datasets/o/n/a.tar", token="t")[1] == (("Authorization", "Bearer t"),)
    url, headers = source("s3://b/k.tar", key="AKIA", secret="hush", anon=True, endpoint_url="http://gw:9000")
    assert (url, headers) == ("s3://b/k.tar?endpoint=http://gw:9000&unsigned=1", ())
    assert (
        source("s3://b/k.tar", client_kwargs={"endpoint_url": "http://gw:9000"}, profile="p")[0]
        == "s3://b/k.tar?endpoint=http://gw:9000&profile=p"
    )


def test_options_of_another_scheme_do_not_count() -> None:
    """A token is a hub's, an endpoint is of s3; and what a URL says itself stands."""
    assert source("s3://b/k.tar", token="t") == ("s3://b/k.tar", ())
    assert source("hf://datasets/o/n/a.tar", token=True)[1] == ()
    assert source(URL, endpoint_url="http://gw:9000") == (URL, ())
    assert source("s3://b/k.tar?unsigned=1", endpoint_url="http://gw:9000") == ("s3://b/k.tar?unsigned=1", ())


@pytest.mark.parametrize(("options", "said"), [({"key": "AKIA"}, 1), ({"anon": True}, 0)])
def test_keys_that_are_not_used_are_told_of(options: dict[str, object], said: int, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        Target("s3", options, "").source("s3://b/k.tar")
    assert [message.partition(":")[0] for message in caplog.messages] == ["keys in s3 options are not used"] * said


def test_the_store_is_asked_under_its_own_name() -> None:
    """By the file system that fsspec has for its scheme."""
    store, path = Target("https", {}, "").store(f"forebay:/{TARGET}")
    assert (store.protocol, path) == (("http", "https"), URL)


@pytest.mark.parametrize(("protocol", "given"), [("https", True), (None, True), ("s3", False)])
def test_the_store_has_the_options_of_its_own_protocol(protocol: str | None, given: bool) -> None:
    assert (Target(protocol, {"block_size": 7}, "").store(f"forebay:/{TARGET}")[0].block_size == 7) == given


@pytest.mark.parametrize(
    ("written", "match"), [("a.tar", "write forebay::https"), ("forebay://s3/", "write s3://"), ("https:///x", "write http://")]
)
def test_what_no_shard_is_named_by(written: str, match: str) -> None:
    """The words show how it is written."""
    with pytest.raises(ValueError, match=match):
        Target(None, {}, "").source(written)
