"""hf.py: a hub asked once, its signed links used while they are good, its token kept to itself. Against a hub of ours on two ports."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.hub import Hub
from support.scripted_answers import ramp
from support.scripted_origin import ScriptedOrigin

from forebay_proxy.core.errors import ConfigError, InvalidShard, OriginLied, OriginRefused, OriginUnavailable, ShardForbidden
from forebay_proxy.core.events import Event, Events
from forebay_proxy.core.shard import ByteRange, Pin, Shard, Version
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.origins.cloud.hf import HfOrigin, hub_endpoint, token_path
from forebay_proxy.origins.http import HttpOrigin
from forebay_proxy.origins.net.guard import Guard, Refused
from forebay_proxy.wire.urls.hf_url import repo_file
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, parse_origin_url

REPO = "datasets/org/name"
DATA = ramp(100_000)
FIRST = ByteRange(0, 9)
NO_PIN = Pin()


def shard_of(url: str, *headers: tuple[str, str]) -> Shard:
    return Shard.of(parse_origin_url(url), headers)


SHARD = shard_of(f"hf://{REPO}/a.tar")


class Client:
    """An hf origin wired as the sidecar wires it. ``now`` is the wall clock by which links are dated."""

    def __init__(self, environ: dict[str, str], allow: Iterable[str], **how: Any) -> None:
        self.events: list[Event] = []
        events = Events()
        events.listen(self.events.append)
        guard = Guard(allow_origin=allow, operator_endpoints=[environ["HF_ENDPOINT"]], **how)
        self._http = HttpOrigin(guard=guard, events=events, connect_timeout_s=2.0, idle_timeout_s=5.0)
        self.passed = 0.0
        self.origin = HfOrigin(self._http, guard=guard, events=events, environ=environ, clock=lambda: self.passed)

    async def get(self, shard: Shard = SHARD, range: ByteRange | None = FIRST, pin: Pin = NO_PIN) -> tuple[OriginBody, bytes]:
        async with self.origin.read(shard, range, pin) as body:
            return body, b"".join([chunk async for chunk in body.chunks])

    async def opened(self, shard: Shard = SHARD) -> Version:
        return (await self.get(shard))[0].version

    async def aclose(self) -> None:
        await self.origin.aclose()
        await self._http.aclose()


@asynccontextmanager
async def client_of(hub: Hub, *allow: str, **environ: str) -> AsyncIterator[Client]:
    made = Client({"HF_ENDPOINT": hub.base, "HF_HOME": "/nonexistent", **environ}, [hub.base, hub.cdn.base, *allow])
    try:
        yield made
    finally:
        await made.aclose()


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub() as made:
        made.put(REPO, "a.tar", DATA)
        made.put(REPO, "small.json", b'{"a": 1}', large=False)
        yield made


@pytest.fixture
async def client(hub: Hub) -> AsyncIterator[Client]:
    async with client_of(hub) as made:
        yield made


# What the hub says, and how often it is asked


async def test_the_hub_is_asked_once_for_all_segments(hub: Hub, client: Client) -> None:
    """One HEAD to the hub, then every range to the link it gave; the content's hash is the identity and a digest to check."""
    body, data = await client.get()
    assert data == DATA[:10]
    sha256 = hashlib.sha256(DATA)
    assert (body.version.identity, body.version.length) == (f"hf:{sha256.hexdigest()}", len(DATA))
    assert body.version.pin.value == f'"{sha256.hexdigest()}"'
    assert [(digest.algorithm, digest.value) for digest in body.digests] == [("sha-256", sha256.digest())]
    for first in range(10, 100, 10):
        assert (await client.get(SHARD, ByteRange(first, first + 9), body.version.pin))[1] == DATA[first : first + 10]
    assert [(request.method, request.range) for request in hub.requests] == [("HEAD", None)]
    assert len(hub.cdn.requests) == 10
    hub.put(REPO, "a.tar", DATA[::-1])  # a link that is still good may be of an older commit
    assert (await client.opened()).identity != body.version.identity


async def test_the_links_host_is_held_to_its_own_etag(hub: Hub, client: Client) -> None:
    """If-Match names what that host compares: never the hub's hash, which it does not know."""
    version = await client.opened()
    await client.get(SHARD, ByteRange(10, 19), version.pin)
    sent = [request.headers.get("if-match") for request in hub.cdn.requests]
    assert sent == [None, hub.cdn.etag_of(hashlib.sha256(DATA).hexdigest())]


async def test_an_ended_link_is_resolved_again_once_by_all_who_notice(hub: Hub, client: Client) -> None:
    """Sixteen segments are refused at one time: the hub is asked once more, not sixteen times."""
    version = await client.opened()
    hub.cdn.end_links()
    firsts = range(0, 160, 10)
    got = await asyncio.gather(*(client.get(SHARD, ByteRange(first, first + 9), version.pin) for first in firsts))
    assert [data for _, data in got] == [DATA[first : first + 10] for first in firsts]
    assert len(hub.requests) == 2


async def test_what_the_first_hop_says_counts(hub: Hub) -> None:
    """The hub names the content; whoever it leads to may have an ETag of its own."""
    async with ScriptedOrigin() as other:
        other.put("/held/a.tar", DATA, headers=(("X-Linked-Etag", '"of its own"'),))
        path = f"/{REPO}/resolve/main/a.tar"
        other.put(path, b"", status=307, etag=None, headers=(("Location", "/held/a.tar"), ("X-Linked-Etag", '"hash"')))
        async with client_of(hub, other.base, HF_ENDPOINT=other.base) as client:
            body, data = await client.get()
    assert (data, body.version.identity, body.version.length) == (DATA[:10], "hf:hash", len(DATA))


async def test_a_link_is_left_shortly_before_it_ends(hub: Hub, client: Client) -> None:
    """By its own date: not a request is refused, and none is spent early."""
    hub.cdn.good_for_s = 600
    version = await client.opened()
    client.passed += 560
    await client.get(SHARD, FIRST, version.pin)
    assert len(hub.requests) == 1
    client.passed += 15
    await client.get(SHARD, FIRST, version.pin)
    assert len(hub.requests) == 2


async def test_another_network_with_other_etags_serves_the_same_bytes(hub: Hub, client: Client) -> None:
    """The hub says it is the same content, so a reader in the middle of it goes on."""
    version = await client.opened()
    await client.get(SHARD, FIRST, version.pin)
    hub.cdn.name = "other"  # the link is remembered, its host answers 412 to the ETag it gave before
    body, data = await client.get(SHARD, ByteRange(10, 19), version.pin)
    assert (data, body.version) == (DATA[10:20], version)
    assert len(hub.requests) == 2


async def test_a_small_file_is_read_from_the_hub_itself(hub: Hub, client: Client) -> None:
    """A relative redirect stays on the hub; the git hash is the identity."""
    shard = shard_of(f"hf://{REPO}/small.json")
    body, data = await client.get(shard, None)
    assert data == b'{"a": 1}'
    assert body.version.identity == "hf:" + hashlib.sha1(b'blob 8\0{"a": 1}').hexdigest()
    assert hub.cdn.requests == []
    assert body.digests == ()


async def test_without_hashes_the_commit_is_the_identity(hub: Hub, client: Client) -> None:
    """A mirror that leaves them out still says which commit it serves."""
    hub.etags = False
    version = await client.opened()
    assert version.identity.startswith("hf:@")
    body, _ = await client.get(SHARD, ByteRange(10, 19), version.pin)
    assert body.version == version


async def test_a_size_that_differs_behind_the_hub_is_a_lie(hub: Hub, client: Client) -> None:
    """The link leads to a file of another length: not a byte of it is taken."""
    hub.cdn.missing = 1
    with pytest.raises(OriginLied, match="100000 bytes, where it sends us it has 99999"):
        await client.get()


async def test_head_asks_the_hub_alone(hub: Hub, client: Client) -> None:
    """Whether a stored shard is still good costs one request, and none behind the hub."""
    version = await client.opened()
    seen = len(hub.cdn.requests)
    again = await client.origin.head(SHARD)
    assert (again.identity, again.length) == (version.identity, version.length)
    assert len(hub.cdn.requests) == seen


@pytest.mark.parametrize(
    ("repo", "revision", "url"),
    [(REPO, said, f"hf://{REPO}@{said}/dir/a b.tar") for said in ("v1.0", "refs/pr/7", "feature%2Fx")]
    + [("org/model", "main", f"hf://{prefix}org/model/dir/a b.tar") for prefix in ("", "models/")]
    + [("spaces/org/app", "main", "hf://spaces/org/app/dir/a b.tar")],
)
async def test_a_file_is_asked_for_as_the_hub_spells_it(hub: Hub, client: Client, repo: str, revision: str, url: str) -> None:
    """Every kind of repository; branches, tags, pull requests; a slash within a revision travels as %2F."""
    hub.put(repo, "dir/a b.tar", ramp(50), revision=revision.replace("%2F", "/"))
    assert (await client.get(shard_of(url)))[1] == ramp(10)


# Who may read


async def test_a_gated_repository_names_its_conditions(hub: Hub) -> None:
    """403 with a good token: an account has to agree first."""
    hub.gated.add(REPO)
    async with client_of(hub, HF_TOKEN="hf_good") as client:
        with pytest.raises(ShardForbidden) as denied:
            await client.get()
    assert denied.value.status == 403
    assert "conditions" in denied.value.next_step


async def test_the_token_goes_to_the_hub_only(hub: Hub) -> None:
    """Neither the network behind it nor any other host ever sees it."""
    hub.private.add(REPO)
    async with client_of(hub, HF_TOKEN="hf_good") as client:
        version = await client.opened()
        hub.cdn.end_links()
        await client.get(SHARD, FIRST, version.pin)
    assert {request.headers.get("authorization") for request in hub.requests} == {"Bearer hf_good"}
    assert hub.cdn.requests
    assert all("hf_good" not in repr(request) for request in hub.cdn.requests)


async def test_a_hub_that_sends_elsewhere_does_not_take_the_token_along(hub: Hub) -> None:
    """A mirror's redirect to another hub is followed without it."""
    async with ScriptedOrigin() as mirror:
        mirror.redirect(f"/{REPO}/resolve/main/a.tar", f"{hub.base}/{REPO}/resolve/main/a.tar", status=308)
        async with client_of(hub, mirror.base, HF_ENDPOINT=mirror.base, HF_TOKEN="hf_good") as client:
            assert (await client.get())[1] == DATA[:10]
        assert mirror.requests[0].headers["authorization"] == "Bearer hf_good"
    assert all("authorization" not in request.headers for request in hub.requests)


async def test_a_readers_own_token_is_used_in_place_of_the_sidecars(hub: Hub) -> None:
    """Who brings one is judged by it."""
    hub.tokens.add("hf_mine")
    hub.private.add(REPO)
    async with client_of(hub, HF_TOKEN="hf_good") as client:
        await client.get(shard_of(f"hf://{REPO}/a.tar", ("Authorization", "Bearer hf_mine"), ("X-Trace", "1")))
        await client.get(shard_of(f"hf://{REPO}/a.tar", ("X-HTTP-Method-Override", "DELETE")))
    mine, ours = hub.requests
    assert (mine.headers["authorization"], mine.headers["x-trace"]) == ("Bearer hf_mine", "1")
    assert ours.headers["authorization"] == "Bearer hf_good"
    assert "x-http-method-override" not in ours.headers


async def test_a_refused_token_is_read_anew_once(hub: Hub, tmp_path: Path) -> None:
    """A file that was written again in the meantime is taken; one that was not costs no second request."""
    file = tmp_path / "token"
    file.write_text("hf_old\n")
    async with client_of(hub, HF_TOKEN_PATH=str(file)) as client:
        with pytest.raises(ShardForbidden):
            await client.get()
        assert len(hub.requests) == 1
        file.write_text("hf_good\n")
        assert (await client.get())[1] == DATA[:10]
    assert [request.headers["authorization"] for request in hub.requests] == ["Bearer hf_old"] * 2 + ["Bearer hf_good"]


async def test_a_token_that_cannot_be_a_header_is_not_sent(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    """Public repositories go on being read, and the log says so without showing it."""
    async with client_of(hub, HF_TOKEN="hf bad\x07") as client:
        assert (await client.get())[1] == DATA[:10]
    assert "authorization" not in hub.requests[0].headers
    assert "not sent" in caplog.text
    assert "hf bad" not in caplog.text


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"HF_TOKEN_PATH": "/t/tok", "HF_HOME": "/h"}, "/t/tok"),
        ({"HF_HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/h/token"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/token"),
        ({}, "~/.cache/huggingface/token"),
    ],
)
def test_where_the_token_file_is(environ: dict[str, str], path: str) -> None:
    """The places of huggingface_hub, in its order."""
    assert token_path(environ) == Path(path).expanduser()


# What goes wrong


async def test_a_full_hub_is_obeyed(hub: Hub, client: Client) -> None:
    """429 without Retry-After: the RateLimit header says when there is room again."""
    hub.limited = 1
    with pytest.raises(OriginUnavailable) as limited:
        await client.get()
    assert (limited.value.throttled, limited.value.retry_after_s) == (True, 7.0)


@pytest.mark.parametrize("url", ["hf://datasets/org/name", "hf://org/a.tar", "hf://buckets/org/name/a.tar", f"hf://{REPO}@/a.tar"])
async def test_what_names_no_file_is_a_400(client: Client, url: str) -> None:
    """The message holds the form that would be right."""
    with pytest.raises(InvalidShard, match="hf://datasets/org/name"):
        await client.get(shard_of(url))


async def test_strict_origins_name_the_hub_and_where_it_leads(hub: Hub) -> None:
    """HF_ENDPOINT is named by being set; the network behind it is a host of its own."""
    client = Client({"HF_ENDPOINT": hub.base, "HF_HOME": "/nonexistent"}, [hub.base], strict_origins=True)
    with pytest.raises(OriginRefused) as refused:
        await client.get()
    assert f"--allow-origin {hub.cdn.base}" in refused.value.next_step
    await client.aclose()


async def test_hf_datasets_names_every_data_set_and_not_where_they_lie(hub: Hub) -> None:
    """The entry is for what comes behind ``hf://``: data sets, and not one of them; the links' host is named beside it."""
    guard = Guard(allow_origin=["hf://datasets"], strict_origins=True)
    guard.check_bucket("hf", "datasets", True, None)
    with pytest.raises(Refused):
        guard.check_bucket("hf", "spaces", True, None)
    with pytest.raises(ConfigError):
        Guard(allow_origin=["hf://datasets/org/name"])
    hub.put("datasets/another/one", "b.tar", DATA)
    for allow, served in ([hub.base], False), ([hub.base, hub.cdn.base], True):
        client = Client({"HF_ENDPOINT": hub.base, "HF_HOME": "/nonexistent"}, allow, strict_origins=True)
        for shard in SHARD, shard_of("hf://datasets/another/one/b.tar"):
            if served:
                assert (await client.get(shard))[1] == DATA[:10]
            else:
                with pytest.raises(OriginRefused):
                    await client.get(shard)
        await client.aclose()


async def test_the_public_hub_is_named_under_strict_origins() -> None:
    """It holds everybody's repositories."""
    client = Client({"HF_ENDPOINT": "https://huggingface.co"}, [], strict_origins=True)
    with pytest.raises(OriginRefused) as refused:
        await client.get()
    assert "--allow-origin hf://datasets" in refused.value.next_step
    await client.aclose()


# Names


def test_a_commit_never_means_other_bytes() -> None:
    """Then the origin need not be asked again; a branch of forty letters is none."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    assert shard_of(f"hf://{REPO}@{commit}/a.tar").is_immutable
    assert shard_of(f"hf://org/model@{commit}/a.tar").is_immutable
    for url in (f"hf://{REPO}/a.tar", f"hf://{REPO}@main/a.tar", f"hf://{REPO}/x@{commit}/a.tar", f"hf://{REPO}@{commit[:-1]}g/a.tar"):
        assert not shard_of(url).is_immutable


URLS = [
    f"hf://{REPO}/a.tar", f"hf://{REPO}@main/d/a.tar", f"hf://{REPO}@refs/pr/3/a b.tar", f"hf://{REPO}@refs/convert/parquet/x/0.parquet",
    f"hf://{REPO}@feature%2Fx/a.tar", f"hf://{REPO}/odd@1.tar", "hf://org/model/x.bin", "hf://models/org/model@v1/x.bin",
    "hf://spaces/org/app/app.py", f"hf://{REPO}@v1/é#?%.tar", "hf://org/refs@refs/pr/12/x",
]  # fmt: skip


@pytest.mark.parametrize("url", URLS)
def test_urls_are_read_as_huggingface_hub_reads_them(url: str) -> None:
    """Same repository, revision and file, and the very URL it would ask."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    parsed = pytest.importorskip("huggingface_hub.utils").parse_hf_uri(url)
    file = repo_file(parse_origin_url(url))
    assert (file.repo, file.revision, file.path) == (parsed.id, parsed.revision or "main", parsed.path_in_repo)
    theirs = huggingface_hub.hf_hub_url(
        parsed.id, parsed.path_in_repo, repo_type=parsed.type, revision=parsed.revision, endpoint="https://hub"
    )
    assert "https://hub" + file.resolve_path() == theirs


def test_a_name_that_is_none_is_refused() -> None:
    """Nothing that could leave the repository's path."""
    dots = ("hf://datasets/org/..@main/a", f"hf://{REPO}@../a", f"hf://{REPO}@%2e%2e%2Fx/a", f"hf://{REPO}@./a")
    for url in ("hf://datasets/org/na%me/a", "hf://datasets/o rg/name/a", f"hf://{REPO}@main", *dots):
        with pytest.raises(InvalidShardUrl):
            repo_file(parse_origin_url(url))


def test_a_hub_with_a_password_ends_the_start() -> None:
    """It was a fault of ours at the first shard: the token and the password cannot both prove one request."""
    with pytest.raises(ConfigError, match="HF_ENDPOINT") as bad:
        hub_endpoint({"HF_ENDPOINT": "https://me:hunter2@hub.example/hf"})
    assert "hunter2" not in f"{bad.value}{bad.value.next_step}"
    assert hub_endpoint({"HF_ENDPOINT": "https://hub.example/a@b/"}) == "https://hub.example/a@b"


async def test_huggingface_hub_itself_downloads_from_the_fake(hub: Hub, tmp_path: Path) -> None:
    """Our hub speaks the real protocol: the library finds the same hash, size and bytes in it."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    hub.private.add(REPO)
    url = huggingface_hub.hf_hub_url("org/name", "a.tar", repo_type="dataset", endpoint=hub.base)
    found = await asyncio.to_thread(huggingface_hub.get_hf_file_metadata, url, token="hf_good", endpoint=hub.base)
    assert (found.etag, found.size) == (hashlib.sha256(DATA).hexdigest(), len(DATA))
    for name, data in (("a.tar", DATA), ("small.json", b'{"a": 1}')):
        file = await asyncio.to_thread(
            huggingface_hub.hf_hub_download, "org/name", name, repo_type="dataset", endpoint=hub.base, token="hf_good", cache_dir=tmp_path
        )
        assert Path(file).read_bytes() == data
