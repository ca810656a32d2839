"""``forebay check``: what a shard's origin answers, what it is, and what to do, through a real sidecar."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from support.scripted_origin import ScriptedOrigin
from support.sidecar import Sidecar, forebay, running
from support.tarmaking import written
from support.tars import tar_shard

from forebay_proxy.wire.tar.first_bytes import why_no_tar


@pytest.fixture
def sidecar(tmp_path: Path, origin: ScriptedOrigin) -> Iterator[Sidecar]:
    with running(tmp_path, "--allow-origin", origin.base) as started:
        yield started


async def check(tmp_path: Path, sidecar: Sidecar, *arguments: str) -> CompletedProcess[str]:
    return await asyncio.to_thread(forebay, tmp_path, "check", *arguments, FOREBAY_URL=sidecar.url)


async def test_a_tar_that_can_be_read(tmp_path: Path, origin: ScriptedOrigin, sidecar: Sidecar) -> None:
    """Its way in, its length, its version, whether it comes in pieces; one request reached the origin."""
    data = tar_shard(0)
    origin.put("/a-000.tar", data, etag='"e1"')
    done = await check(tmp_path, sidecar, origin.url("/a-{000..009}.tar"))
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert f"through Forebay: {sidecar.url}/http/" in text
    assert 'version ETag "e1"' in text
    assert "in pieces yes: a broken body is resumed" in text
    assert "it is tar" in text
    assert len(origin.seen("/a-000.tar")) == 1
    found = json.loads((await check(tmp_path, sidecar, "--json", origin.url("/a-000.tar"))).stdout)
    assert (found["readable"], found["is_tar"], found["length_bytes"], found["etag"]) == (True, True, len(data), '"e1"')


async def test_an_origin_without_ranges_is_told(tmp_path: Path, origin: ScriptedOrigin, sidecar: Sidecar) -> None:
    """The sidecar answers in pieces all the same; what breaks off on the way from such an origin is not resumed."""
    origin.put("/whole.tar", tar_shard(0), ranges=False)
    done = await check(tmp_path, sidecar, origin.url("/whole.tar"))
    assert done.returncode == 0, done.stderr
    assert "in pieces no: the origin gives the whole alone" in " ".join(done.stdout.split())
    found = json.loads((await check(tmp_path, sidecar, "--json", origin.url("/whole.tar"))).stdout)
    assert (found["status"], found["in_pieces"]) == (206, False)


async def test_a_login_page_is_no_tar(tmp_path: Path, origin: ScriptedOrigin, sidecar: Sidecar) -> None:
    """Status 200 says nothing: exit 1, in the words of the loader and of ``warm``, and what to look at."""
    page = b"<!DOCTYPE html><html>login</html>"
    origin.put("/login.tar", page)
    done = await check(tmp_path, sidecar, origin.url("/login.tar"))
    assert done.returncode == 1
    assert f"it is {why_no_tar(page)}" in " ".join(done.stdout.split())
    assert "the credential that travels" in done.stdout
    found = json.loads((await check(tmp_path, sidecar, "--json", origin.url("/login.tar"))).stdout)
    assert (found["readable"], found["is_tar"], found["kind"]) == (True, False, why_no_tar(page))


async def test_what_the_loader_reads_is_a_tar(tmp_path: Path, origin: ScriptedOrigin, sidecar: Sidecar) -> None:
    """Also a packed one, one of before POSIX, and one whose name does not say so."""
    old = bytearray(tar_shard(0))
    old[148:156], old[257:265] = b" " * 8, bytes(8)
    old[148:156] = b"%06o\0 " % sum(old[:512])
    for name, data, kind in (("a.tgz", gzip.compress(tar_shard(0)), "gz"), ("old.tar", bytes(old), "tar"), ("get", tar_shard(1), "tar")):
        origin.put(f"/{name}", data)
        done = await check(tmp_path, sidecar, "--json", origin.url(f"/{name}"))
        assert (done.returncode, json.loads(done.stdout)["kind"]) == (0, kind), (name, done.stdout)


async def test_what_is_amiss_is_told(tmp_path: Path, origin: ScriptedOrigin, sidecar: Sidecar) -> None:
    """Halves of samples, by ``check`` and ``index``; Git LFS's text; an ETag of encoded bytes; a command's path."""
    torn = written([(f"{number}.{end}", b"x") for end in "ab" for number in range(4)])
    origin.put("/torn.tar", torn)
    origin.put("/lfs.tar", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n")
    origin.put("/enc.tar", gzip.compress(torn), etag='"e1"', headers=(("Content-Encoding", "gzip"),))
    url = origin.url("/torn.tar")
    for verb in (["index", url, "--sizes", ""], ["check", url]):
        done = await asyncio.to_thread(forebay, tmp_path, *verb, FOREBAY_URL=sidecar.url)
        assert "4 of its samples have a key that came before" in " ".join((done.stdout + done.stderr).split()), verb
    lfs = (await check(tmp_path, sidecar, origin.url("/lfs.tar"))).stdout
    assert "git lfs pull" in lfs
    assert "credential that travels" not in lfs
    assert """the origin's ETag "e1" is of the encoded bytes""" in (await check(tmp_path, sidecar, origin.url("/enc.tar"))).stdout
    assert "a path segment is '.' or '..'" in (await check(tmp_path, sidecar, "pipe:aws s3 cp s3://b/../a.tar -")).stdout


@pytest.mark.parametrize(("status", "words"), [(403, "403"), (404, "404")])
async def test_a_refusal_is_told_with_its_next_step(
    tmp_path: Path, origin: ScriptedOrigin, sidecar: Sidecar, status: int, words: str
) -> None:
    """What a reader would meet, before it meets it."""
    origin.put("/no.tar", b"", status=status)
    done = await check(tmp_path, sidecar, origin.url("/no.tar"))
    assert done.returncode == 1
    assert f"cannot be read ({words})" in done.stdout
    assert "do this" in done.stdout


@pytest.mark.parametrize("text", ["pipe:my-tool a.tar", "/data/a.tar", "hf://buckets/org/b/a.tar", "ais://b/a.tar"])
async def test_what_forebay_does_not_read_is_told_as_that(tmp_path: Path, sidecar: Sidecar, text: str) -> None:
    """Each way in leaves it to WebDataset, and nobody is asked; the exit code is that of a question answered."""
    done = await check(tmp_path, sidecar, text)
    assert (done.returncode, done.stdout.count("left to WebDataset"), "through Forebay" in done.stdout) == (0, 2, False)
