"""``/v1/meter``: totals are taken from those who may talk, and shown by job."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from support.http_server import World, listening

METER = "/v1/meter/train/0/main/7.0"
BODY = b'{"wall_s": 60.0, "stall_s": {"decode": 1.5}, "steps": 100}'


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with listening() as made:
        yield made


async def test_totals_are_taken(world: World) -> None:
    """Under the name in the path; the answer says nothing."""
    reply = await world.ask("POST", METER, {}, BODY)
    assert (reply.status, reply.body) == (204, b"")
    ((reader, body),) = world.meters
    assert (str(reader), body.steps, body.stall_s["decode"]) == ("train/0/main/7.0", 100, 1.5)


async def test_a_process_says_that_it_ends(world: World) -> None:
    """Under its name; nobody else is ended by it."""
    reply = await world.ask("DELETE", METER)
    assert (reply.status, reply.body, world.meters, list(map(str, world.ended))) == (204, b"", [], ["train/0/main/7.0"])


async def test_those_of_a_job_are_shown(world: World) -> None:
    """By its name, percent-encoded; looking on keeps no idle sidecar."""
    before = world.server.requests.last_active
    assert (await world.ask("GET", "/v1/meter/my%20job")).json == {"job": "my job", "ranks": []}
    assert (await world.ask("HEAD", "/v1/meter/train")).status == 200
    assert world.server.requests.last_active == before


@pytest.mark.parametrize(
    ("method", "path", "allow"), [("PUT", METER, "POST, DELETE"), ("GET", METER, "POST, DELETE"), ("POST", "/v1/meter/train", "GET, HEAD")]
)
async def test_another_method_is_405(world: World, method: str, path: str, allow: str) -> None:
    """It says which there are."""
    reply = await world.ask(method, path, {}, BODY if method != "GET" else b"")
    assert (reply.status, reply.headers["allow"]) == (405, allow)


@pytest.mark.parametrize("path", ["/v1/meter/", "/v1/meter/%2f", "/v1/meter/..", "/v1/meter/%0a"])
async def test_what_names_no_job_is_400(world: World, path: str) -> None:
    """And what would."""
    reply = await world.ask("GET", path)
    assert (reply.status, "/v1/meter/{job}" in reply.problem["next_step"]) == (400, True)


@pytest.mark.parametrize("path", ["/v1/meter/a/b/c", "/v1/meter/a/b/c/d/e", "/v1/meter/a//c/d", "/v1/meter/a/b/c/%0a"])
async def test_what_names_nobody_is_400(world: World, path: str) -> None:
    """Nothing is taken."""
    assert (await world.ask("POST", path, {}, BODY)).status == 400
    assert world.meters == []


async def test_a_bad_field_is_400_and_named(world: World) -> None:
    """Nothing of it is taken."""
    reply = await world.ask("POST", METER, {}, json.dumps({**json.loads(BODY), "steps": -1}).encode())
    assert (reply.status, reply.problem["detail"].split()[0]) == (400, "steps")
    assert world.meters == []
