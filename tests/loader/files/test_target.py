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


def test_options_of_the_target_count() -> None:
    """Headers of http, a hub's token, an endpoint of s3; keys of s3 do not travel."""

    def source(url: str, **options: object) -> tuple[str, tuple[tuple[str, str], ...]]:
        found = Target(url.partition(":")[0], options, "").source(url)[1]
        return found.url.text(), found.headers

    assert source(URL, headers={"Authorization": "a"}) == (URL, (("Authorization", "a"),))
    assert source(URL, client_kwargs={"headers": {"X-Key": "k"}}) == (URL, (("X-Key", "k"),))
    assert source("hf://datasets/o/n/a.tar", token="t")[1] == (("Authorization", "Bearer t"),)
    url, headers = source("s3://b/k.tar", key="AKIA", secret="hush", anon=True, endpoint_url="http://gw:9000")
    assert (url, headers) == ("s3://b/k.tar?endpoint=http://gw:9000&unsigned=1", ())


def test_the_store_is_asked_under_its_own_name() -> None:
    """By the file system that fsspec has for its scheme."""
    store, path = Target("https", {}, "").store(f"forebay:/{TARGET}")
    assert (store.protocol, path) == (("http", "https"), URL)


def test_what_no_shard_is_named_by() -> None:
    """The words show how it is written."""
    with pytest.raises(ValueError, match="write forebay::https"):
        Target(None, {}, "").source("a.tar")
