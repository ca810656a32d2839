"""gs.py and gs_auth.py: whose token goes where, and bytes as they are stored. Against a storage and a token service of ours."""

from __future__ import annotations

import gzip
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.gcs import Gcs, account_file
from support.scripted_answers import ramp
from support.scripted_origin import ScriptedOrigin

from forebay_proxy.core.errors import ConfigError, OriginRefused, OriginUnavailable, ShardChanged, ShardForbidden
from forebay_proxy.core.events import Event, Events
from forebay_proxy.core.shard import ByteRange, Pin, Shard
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.origins.cloud.gs import GOOGLE, GsOrigin, emulator_endpoint
from forebay_proxy.origins.cloud.gs_auth import Google
from forebay_proxy.origins.http import HttpOrigin
from forebay_proxy.origins.net.guard import Guard
from forebay_proxy.wire.urls.shard_url import parse_origin_url

# google-auth warns of files from strangers; this one is the operator's.
pytestmark = pytest.mark.filterwarnings("ignore:The load_credentials_from_file method:DeprecationWarning")

DATA = ramp(100_000)
FIRST = ByteRange(0, 9)
NO_PIN = Pin()


def shard_of(url: str, *headers: tuple[str, str]) -> Shard:
    return Shard.of(parse_origin_url(url), headers)


SHARD = shard_of("gs://bucket/a.tar")


class Client:
    """A gs origin wired as the sidecar wires it. ``now`` is the wall clock by which tokens are dated."""

    def __init__(self, *allow: str, strict_origins: bool = False, **how: Any) -> None:
        self.events: list[Event] = []
        events = Events()
        events.listen(self.events.append)
        guard = Guard(allow_origin=allow, strict_origins=strict_origins, operator_endpoints=filter(None, [how.get("endpoint")]))
        self._http = HttpOrigin(guard=guard, events=events, connect_timeout_s=2.0, idle_timeout_s=5.0)
        self.passed = 0.0
        google = how.pop("google", None) or Google(clock=self.now)
        self.origin = GsOrigin(self._http, guard=guard, clock=self.now, google=google, **how)

    def now(self) -> float:
        return time.time() + self.passed

    async def get(self, shard: Shard = SHARD, range: ByteRange | None = FIRST, pin: Pin = NO_PIN) -> tuple[OriginBody, bytes]:
        async with self.origin.read(shard, range, pin) as body:
            return body, b"".join([chunk async for chunk in body.chunks])

    async def aclose(self) -> None:
        await self.origin.aclose()
        await self._http.aclose()


@asynccontextmanager
async def client_of(gcs: Gcs, *allow: str, **how: Any) -> AsyncIterator[Client]:
    made = Client(gcs.base, *allow, endpoint=gcs.base, **how)
    try:
        yield made
    finally:
        await made.aclose()


@pytest.fixture
async def gcs() -> AsyncIterator[Gcs]:
    async with Gcs() as made:
        made.put("bucket/a.tar", DATA)
        made.put("bucket/open.tar", DATA, public=True)
        yield made


@pytest.fixture
def account(gcs: Gcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's service account."""
    file = account_file(tmp_path / "account.json", gcs.base + "/token")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    return file


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials anywhere."""
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))


@pytest.fixture
async def client(gcs: Gcs, account: Path) -> AsyncIterator[Client]:
    async with client_of(gcs) as made:
        yield made


# Versions and bytes


async def test_ranges_pins_and_generations(gcs: Gcs, client: Client) -> None:
    """The generation is the identity, the ETag what the service compares."""
    body, data = await client.get()
    assert data == DATA[:10]
    assert body.version.identity.startswith("gs:17")
    assert (body.version.length, body.version.encoding) == (len(DATA), "")
    assert (await client.get(SHARD, ByteRange(500, 999), body.version.pin))[1] == DATA[500:1000]
    assert gcs.reads[1].headers["if-match"] == body.version.pin.value
    gcs.put("bucket/a.tar", DATA[::-1])
    with pytest.raises(ShardChanged):
        await client.get(SHARD, FIRST, body.version.pin)
    again = await client.origin.head(SHARD)
    assert again.identity != body.version.identity


async def test_a_compressed_object_comes_as_it_is_stored(gcs: Gcs, client: Client) -> None:
    """Its own length, ranges, and the encoding said: not unpacked on the way into something without either."""
    packed = gzip.compress(DATA, mtime=0)
    gcs.put("bucket/z.tar", packed, encoding="gzip")
    shard = shard_of("gs://bucket/z.tar")
    body, data = await client.get(shard, ByteRange(10, 19))
    assert data == packed[10:20]
    assert (body.version.length, body.version.encoding) == (len(packed), "gzip")
    assert (await client.origin.head(shard)).length == len(packed)
    assert len(body.digests) == 1, "x-goog-hash is of these very bytes"


async def test_odd_keys_are_spelt_as_the_service_wants(gcs: Gcs, client: Client) -> None:
    """Nothing in a key is an option, a query or a space by another name."""
    gcs.put("bucket/a b//c%2F?d#+&e=é.tar", ramp(50))
    assert (await client.get(shard_of("gs://bucket/a b//c%2F?d#+&e=é.tar")))[1] == ramp(10)
    assert gcs.reads[-1].path == "/bucket/a%20b//c%252F%3Fd%23%2B%26e%3D%C3%A9.tar"


# Tokens


async def test_a_token_is_renewed_before_it_ends(gcs: Gcs, client: Client) -> None:
    """Some minutes ahead, not at the end and not each time."""
    for seconds, tokens in ((0, 1), (3000, 1), (500, 2), (10, 2)):
        client.passed += seconds
        await client.get()
        assert gcs.token_requests == tokens, seconds


async def test_an_old_token_serves_while_a_new_one_cannot_be_had(gcs: Gcs, client: Client) -> None:
    """The token service is in trouble minutes before the end: nothing fails, and it is not asked with every request."""
    await client.get()
    gcs.token_status = 503
    client.passed += 3500
    for _ in range(3):
        assert (await client.get())[1] == DATA[:10]
    before = gcs.token_requests
    await client.get()
    assert gcs.token_requests == before
    client.passed += 200
    with pytest.raises(OriginUnavailable, match="token service"):
        await client.get()


async def test_a_refused_token_is_read_anew_once(gcs: Gcs, client: Client) -> None:
    """401: the credentials are read again and the request sent again; a second refusal stands."""
    await client.get()
    gcs.end_tokens()
    assert (await client.get())[1] == DATA[:10]
    assert [request.headers["authorization"] for request in gcs.reads[1:]] == ["Bearer ya29.canary-0", "Bearer ya29.canary-1"]
    gcs.end_tokens()
    with pytest.raises(ShardForbidden) as refused:
        await client.get()
    assert refused.value.status == 401
    assert len(gcs.reads) == 4, "ten seconds have not passed: one request, no token"


async def test_refused_credentials_say_what_to_do(gcs: Gcs, client: Client) -> None:
    """invalid_grant: logged out, or a key that was withdrawn."""
    gcs.token_status = 400
    with pytest.raises(ShardForbidden) as refused:
        await client.get()
    assert "gcloud auth application-default login" in refused.value.next_step
    assert "PRIVATE KEY" not in str(refused.value)
    assert gcs.reads == []


async def test_a_file_that_cannot_be_used_is_not_passed_over(gcs: Gcs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named but absent: reading as nobody instead would hide it."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent/key.json")
    async with client_of(gcs) as client:
        with pytest.raises(ShardForbidden, match="GOOGLE_APPLICATION_CREDENTIALS"):
            await client.get(shard_of("gs://bucket/open.tar"))
    assert gcs.requests == []


async def test_the_file_of_gcloud_is_found(gcs: Gcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `gcloud auth application-default login` writes, without running gcloud."""
    (tmp_path / "gcloud").mkdir()
    account_file(tmp_path / "gcloud" / "application_default_credentials.json", gcs.base + "/token")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("PATH", "/nonexistent")
    async with client_of(gcs) as client:
        assert (await client.get())[1] == DATA[:10]


# Nobody's requests


@pytest.mark.usefixtures("nobody")
async def test_without_credentials_public_objects_are_read(gcs: Gcs, caplog: pytest.LogCaptureFixture) -> None:
    """Said once; a private object's refusal says what to do."""
    with caplog.at_level(logging.WARNING):
        async with client_of(gcs) as client:
            for _ in range(2):
                assert (await client.get(shard_of("gs://bucket/open.tar")))[1] == DATA[:10]
            with pytest.raises(ShardForbidden, match="Anonymous") as denied:
                await client.get()
    assert denied.value.status == 403
    assert "GOOGLE_APPLICATION_CREDENTIALS" in denied.value.next_step
    assert all("authorization" not in request.headers for request in gcs.requests)
    assert [record.name for record in caplog.records] == ["forebay"]


@pytest.mark.usefixtures("nobody")
async def test_credentials_that_come_later_are_found(gcs: Gcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody logs in: the next refusal looks again, and the sidecar goes on."""
    async with client_of(gcs) as client:
        with pytest.raises(ShardForbidden):
            await client.get()
        file = account_file(tmp_path / "account.json", gcs.base + "/token")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        client.passed += 11
        assert (await client.get())[1] == DATA[:10]


@pytest.mark.usefixtures("account")
async def test_anonymous_by_setting_sends_nothing(gcs: Gcs) -> None:
    """Credentials that are there are left alone, before and after a refusal."""
    async with client_of(gcs, anonymous=True) as client:
        await client.get(shard_of("gs://bucket/open.tar"))
        with pytest.raises(ShardForbidden):
            await client.get()
    assert gcs.token_requests == 0
    assert all("authorization" not in request.headers for request in gcs.requests)


# Whose credentials go where


async def test_the_token_stays_with_the_endpoint(gcs: Gcs, account: Path) -> None:
    """A redirect to another host is followed without it."""
    async with ScriptedOrigin() as other:
        other.put("/bucket/a.tar", DATA)
        gcs.redirect = other.base
        async with client_of(gcs, other.base) as client:
            assert (await client.get())[1] == DATA[:10]
        assert gcs.reads[0].headers["authorization"].startswith("Bearer ya29.canary")
        assert "canary" not in repr(other.requests)
        assert "authorization" not in other.requests[0].headers


async def test_a_readers_own_token_is_used_in_place_of_the_sidecars(gcs: Gcs, client: Client) -> None:
    """Who brings one is judged by it; other headers of a reader never travel beside the sidecar's token."""
    with pytest.raises(ShardForbidden):
        await client.get(shard_of("gs://bucket/a.tar", ("Authorization", "Bearer mine"), ("X-Goog-User-Project", "p")))
    assert gcs.token_requests == 0
    assert (gcs.reads[0].headers["authorization"], gcs.reads[0].headers["x-goog-user-project"]) == ("Bearer mine", "p")
    await client.get(shard_of("gs://bucket/a.tar", ("X-HTTP-Method-Override", "DELETE")))
    assert "x-http-method-override" not in gcs.reads[1].headers


@pytest.mark.parametrize("endpoint", ["http://user:secret@127.0.0.1:9000", "http://user@host/path"])
async def test_an_endpoint_with_a_password_is_refused(endpoint: str) -> None:
    """A request with a token cannot prove itself twice; the message holds none of it."""
    with pytest.raises(ConfigError) as refused:
        Client(endpoint=endpoint)
    assert "user:secret" not in str(refused.value)
    assert "STORAGE_EMULATOR_HOST" in refused.value.next_step


async def test_strict_origins_name_buckets_or_endpoints(gcs: Gcs, account: Path) -> None:
    """The operator's own endpoint is named by being configured; Google's holds everybody's buckets."""
    async with client_of(gcs, strict_origins=True) as client:
        await client.get()
    client = Client("gs://mine", strict_origins=True)
    assert (await client.origin.prepare(shard_of("gs://mine/k"))).url == f"{GOOGLE}/mine/k"
    with pytest.raises(OriginRefused) as refused:
        await client.origin.prepare(SHARD)
    assert "--allow-origin gs://bucket " in refused.value.next_step
    await client.aclose()


async def test_secrets_stay_out_of_sight(client: Client) -> None:
    """No representation of what is passed around shows a token."""
    ask = await client.origin.prepare(SHARD)
    assert "canary" in repr(ask.headers)
    assert "canary" not in repr(ask) + repr(client.origin._now)


@pytest.mark.parametrize(("said", "url"), [("", ""), ("localhost:9023", "http://localhost:9023"), ("http://e:1", "http://e:1")])
def test_how_an_emulator_is_named(said: str, url: str) -> None:
    """With a scheme and without, as Google's own libraries take it."""
    assert emulator_endpoint(said) == url
