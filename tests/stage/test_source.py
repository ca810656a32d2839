"""Samples of SRC, in the version that the plan noted or not at all."""

from __future__ import annotations

import gzip

import pytest
from support.scripted_origin import ScriptedOrigin
from support.stage_work import inputs_of, put_shards
from support.tars import tar_shard

from forebay_proxy.wire.commands.sources import Source, parse_source
from forebay_stage.errors import StageError
from forebay_stage.source import noted, samples_of, samples_of_piece

pytestmark = pytest.mark.usefixtures("through_sidecar")


def source_of(url: str) -> Source:
    found = parse_source(url)
    assert found is not None
    return found


def test_versions_are_noted_in_order(origin: ScriptedOrigin) -> None:
    """Name, ETag and length of each; a signature is in none."""
    urls = put_shards(origin, "noted", (1, 2, 3))
    told: list[int] = []
    assert noted([source_of(url) for url in urls], told.append) == inputs_of(origin, urls)
    assert told == [1, 2, 3]
    (signed,) = noted([source_of(urls[0] + "?X-Amz-Signature=secret&X-Amz-Credential=c")], told.append)
    assert "secret" not in signed.name


def test_an_origin_without_versions_is_read_all_the_same(origin: ScriptedOrigin) -> None:
    """Each opening is one version; which one the plan has seen cannot be told."""
    origin.put("/nameless/0.tar", tar_shard(0, 3, 300), etag=None)
    source = source_of(origin.url("/nameless/0.tar"))
    (known,) = noted([source], lambda _: None)
    assert known.etag == ""
    assert len(list(samples_of(source, known.etag, "stage/0/0/1.1"))) == 3


def test_samples_come_as_they_are(origin: ScriptedOrigin) -> None:
    """Key, where from, and undecoded files; also out of a compressed shard."""
    plain = put_shards(origin, "plain", (3,))[0]
    origin.put("/plain/z.tar.gz", gzip.compress(tar_shard(0, 3, 300)), etag='"z"')
    first = list(samples_of(source_of(plain), '"plain-0"', "stage/0/0/1.1"))
    assert [(sample["__key__"], sample["__url__"], sample["txt"]) for sample in first] == [
        (f"000-00{number}", plain, f"000-00{number}".encode()) for number in range(3)
    ]
    again = samples_of(source_of(origin.url("/plain/z.tar.gz")), '"z"', "stage/0/0/1.1")
    assert [sample["bin"] for sample in again] == [sample["bin"] for sample in first]


def test_another_version_is_an_error(origin: ScriptedOrigin) -> None:
    """Before its first sample."""
    (url,) = put_shards(origin, "changed", (3,))
    with pytest.raises(StageError, match=r'changed/00\.tar: was replaced since this stage began \("old" became "changed-0"\)'):
        next(samples_of(source_of(url), '"old"', "stage/0/0/1.1"))


@pytest.mark.parametrize("body", [b"<html>login</html>" * 100, tar_shard(0, 3, 3000)[:5000]], ids=["a page", "cut"])
def test_no_whole_tar_is_an_error(origin: ScriptedOrigin, body: bytes) -> None:
    """That names the shard."""
    path = f"/bad/{len(body)}.tar"
    origin.put(path, body, etag='"bad"')
    with pytest.raises(StageError, match=path):
        list(samples_of(source_of(origin.url(path)), '"bad"', "stage/0/0/1.1"))


def test_a_file_that_comes_twice_in_a_sample_is_an_error(origin: ScriptedOrigin) -> None:
    """That names the shard, not a process that dies of it."""
    first = tar_shard(0, 1, 300)[: 2 * (512 + 512)]
    origin.put("/twice/0.tar", first + first + bytes(1024), etag='"twice"')
    with pytest.raises(StageError, match=r"shard .*/twice/0\.tar: .*duplicate file name"):
        list(samples_of(source_of(origin.url("/twice/0.tar")), '"twice"', "stage/0/0/1.1"))


def test_a_piece_of_a_tar() -> None:
    """Has the samples whose blocks it holds."""
    data = tar_shard(4, 3, 300)
    size = 2 * (512 + 512)  # a sample's: two files of a block
    assert [sample["__key__"] for sample in samples_of_piece("part", data[size : 3 * size])] == ["004-001", "004-002"]
