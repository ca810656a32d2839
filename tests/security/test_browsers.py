"""What a web page can make the browser of a person at this machine send: nothing of it reaches a shard, a command or the status."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.fake_cache import FakeShard
from support.http_server import World, listening
from support.refusals import refused

PATHS = ["/", "/v1/status", "/v1/shards", "/v1/plans", "/v1/meter/a", "/metrics", "/s3/b/0.tar", "/file/etc/passwd", "/https/h/0.tar"]
COMMANDS = [
    ("POST", "/v1/evict"),
    ("POST", "/v1/warm"),
    ("PUT", "/v1/plans/a/b/c/d"),
    ("DELETE", "/v1/plans/a/b/c/d"),
    ("POST", "/v1/meter/a/b/c/d"),
]
FOREIGN = {
    "an Origin": {"Origin": "https://evil.example"},
    "an opaque Origin": {"Origin": "null"},
    "an Origin on another port": {"Origin": "http://127.0.0.1:9"},
    "Sec-Fetch-Site cross-site": {"Sec-Fetch-Site": "cross-site"},
    "Sec-Fetch-Site same-site": {"Sec-Fetch-Site": "same-site"},
    "a rebound name": {"Host": "evil.example"},
    "a rebound name with our port": {"Host": "evil.example:7070"},
    "a name that ends in ours": {"Host": "127.0.0.1.evil.example"},
    "a name that begins with ours": {"Host": "localhost.evil.example"},
    "the unspecified address": {"Host": "0.0.0.0"},
    "a private address": {"Host": "192.168.0.1:7070"},
    "a rebound name that is its own Origin": {"Host": "evil.example", "Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with listening({"s3://b/0.tar": FakeShard(b"shard"), "https://h/0.tar": FakeShard(b"shard")}) as found:
        yield found


def nothing_happened(world: World) -> bool:
    return world.cache.resolver == [] and world.operations.evicted == [] and world.plans.calls == [] and world.meters == []


@pytest.mark.parametrize("who", FOREIGN)
async def test_a_foreign_page_gets_nothing(world: World, who: str) -> None:
    """No path, no command; the refusal carries no permission for another origin."""
    for method, path in [*(("GET", path) for path in PATHS), *COMMANDS]:
        reply = await world.ask(method, path, FOREIGN[who], b'{"all": true}' if method != "GET" else b"")
        allowed = [name for name in reply.headers if name.startswith("access-control")]
        refused(f"browser: {method} {path} with {who}", held=reply.status == 403 and not allowed and nothing_happened(world))


@pytest.mark.parametrize(("method", "path"), COMMANDS)
@pytest.mark.parametrize("referer", ["https://evil.example/page", "http://127.0.0.1:9/", "http://127.0.0.1.evil.example/"])
async def test_a_form_of_an_old_browser_commands_nothing(world: World, method: str, path: str, referer: str) -> None:
    """One that sends neither Origin nor Sec-Fetch-Site still says where its form was."""
    reply = await world.ask(method, path, {"Referer": referer, "Content-Type": "text/plain"}, b'{"all": true}')
    refused(f"browser: {method} {path} from {referer}", held=reply.status == 403 and nothing_happened(world))


@pytest.mark.parametrize(("method", "path"), COMMANDS)
async def test_even_our_own_page_commands_nothing(world: World, method: str, path: str) -> None:
    """The status page only looks; a script that got into it could do no more."""
    headers = {"Host": "127.0.0.1:7070", "Origin": "http://127.0.0.1:7070", "Sec-Fetch-Site": "same-origin"}
    reply = await world.ask(method, path, headers, b'{"all": true}')
    refused(f"browser: {method} {path} from our own page", held=reply.status == 403 and nothing_happened(world))


async def test_a_shard_is_not_shown_by_a_browser_even_when_typed(world: World) -> None:
    """A page that an origin sends would otherwise be one of ours."""
    reply = await world.ask("GET", "/https/h/0.tar", {"Sec-Fetch-Site": "none"})
    refused("browser: a shard typed into the address bar", held=reply.status == 403 and nothing_happened(world))


async def test_a_preflight_gets_no_permission(world: World) -> None:
    """So no page can add the headers that a command or a shard might want."""
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "forebay-token"}
    for path in (*PATHS, "/v1/evict"):
        reply = await world.ask("OPTIONS", path, headers)
        permission = [name for name in reply.headers if name.startswith("access-control")]
        refused(f"browser: preflight of {path}", held=reply.status == 403 and permission == [])


async def test_a_referer_is_no_reason_to_refuse_a_shard(world: World) -> None:
    """Some origins ask for one, and --pass-header brings it there."""
    assert (await world.ask("GET", "/s3/b/0.tar", {"Referer": "https://data.example/"})).status == 200


async def test_a_shard_is_inert_in_any_browser(world: World) -> None:
    """An origin's page, shown by a browser that says nothing of itself, runs no script and reads nothing of ours."""
    world.cache.contents["s3://b/0.tar"] = FakeShard(b"<script>alert(1)</script>", content_type="text/html")
    headers = (await world.ask("GET", "/s3/b/0.tar")).headers
    policy = headers["content-security-policy"]
    held = headers["x-content-type-options"] == "nosniff" and "sandbox" in policy and "default-src 'none'" in policy
    refused("browser: an origin's page in an old browser", held=held)


async def test_the_page_allows_no_frame_and_no_foreign_script(world: World) -> None:
    """Clicks cannot be stolen, scripts cannot be slipped in."""
    policy = (await world.ask("GET", "/")).headers["content-security-policy"]
    wanted = ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'none'", "base-uri 'none'")
    refused("browser: frames and foreign scripts", held=all(rule in policy for rule in wanted) and "unsafe" not in policy)
