"""Bytes fetched with one credential are not read with another, unless the origin itself says yes to it; and a request's credential goes to
the host it named first and no further."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.house import SEGMENT, World, building, data_of, shard_of
from support.leaks import Leaks, sent_to
from support.refusals import refused
from support.scripted_origin import ScriptedOrigin, in_a_thread
from support.sidecar import Sidecar, running

from forebay_proxy.cache.resident.entry import PROOF_S
from forebay_proxy.core.errors import ShardForbidden
from forebay_proxy.core.shard import Credential, Shard
from forebay_proxy.policy.plans.entries import Entries
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.server.http.framing import credential_headers
from forebay_proxy.server.http.plan_route import parse_plan
from forebay_proxy.wire.protocol.plan import ReaderName
from forebay_proxy.wire.urls.shard_url import parse_origin_url

NAME = "https://h/0.tar"
DATA = data_of(2 * SEGMENT)
OWNER, FRIEND, STRANGER = (shard_of(NAME, credential=f"Bearer {who}") for who in ("owner", "friend", "stranger"))
NOBODY = shard_of(NAME)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A shard that owner and friend may read at the origin, fetched by its owner."""
    async with building(tmp_path, segments=64) as found:
        found.origin.put(NAME, DATA, allowed={OWNER.credential, FRIEND.credential})
        assert await found.get(OWNER) == DATA
        await found.quiet()
        found.origin.log.clear()
        yield found


async def is_denied(world: World, shard: Shard) -> bool:
    try:
        await world.get(shard)
    except ShardForbidden as error:
        return error.status in (401, 403)
    return False


async def test_another_credential_proves_itself_first(world: World) -> None:
    """By a GET of one byte under the version's pin; then it reads from the store."""
    assert await world.get(FRIEND) == DATA
    proofs = [(asked.range, asked.pin, asked.head, asked.credential) for asked in world.origin.log]
    refused("credentials: a second one without a proof", held=proofs == [((0, 0), '"v1"', False, FRIEND.credential)])


async def test_a_proof_holds_ten_minutes(world: World) -> None:
    """Then the origin is asked again, and its present answer counts."""
    assert PROOF_S == 600
    await world.get(FRIEND)
    world.clock.advance(PROOF_S - 1)
    await world.get(FRIEND)
    assert len(world.origin.asked()) == 1
    world.origin.remotes[NAME].allowed = {OWNER.credential}
    world.clock.advance(2)
    refused("credentials: a proof older than ten minutes", held=await is_denied(world, FRIEND) and len(world.origin.asked()) == 2)


@pytest.mark.parametrize("who", [STRANGER, NOBODY])
async def test_who_cannot_prove_it_reads_nothing(world: World, who: Shard) -> None:
    """Neither with another credential nor with none at all, warm as the bytes may be."""
    refused(
        f"credentials: {'another' if who is STRANGER else 'no'} credential",
        held=await is_denied(world, who) and world.origin.sent(NAME) == len(DATA),
    )


async def test_who_is_denied_does_not_take_the_bytes_from_the_others(world: World) -> None:
    """The owner goes on reading from the store."""
    await is_denied(world, STRANGER)
    world.origin.log.clear()
    refused("credentials: a denied one that spoils it for others", held=await world.get(OWNER) == DATA and world.origin.log == [])


async def test_a_flight_of_one_is_not_boarded_by_another(world: World) -> None:
    """While the owner's opening is in the air, the stranger's is its own, and is denied."""
    name = "https://h/slow.tar"
    remote = world.origin.put(name, DATA, allowed={OWNER.credential})
    gate = remote.hold(SEGMENT // 2)
    async with world.opened(Shard(OWNER.url, name, OWNER.credential)) as reading:
        assert await anext(reading.chunks())
        await gate.reached.wait()
        held = await is_denied(world, Shard(STRANGER.url, name, STRANGER.credential))
        gate.open()
    refused("credentials: a stranger on the owner's flight", held=held)


async def test_after_a_restart_the_same_rules_hold(tmp_path: Path) -> None:
    """The row keeps HMACs, so the owner need not ask and the stranger must."""
    async with building(tmp_path, segments=64, revalidate="never") as world:
        origin = world.origin
        origin.put(NAME, DATA, allowed={OWNER.credential})
        await world.get(OWNER)
        await world.quiet()
    async with building(tmp_path, segments=64, revalidate="never", origin=origin) as world:
        origin.log.clear()
        assert await is_denied(world, STRANGER)
        origin.log.clear()
        held = await world.get(OWNER) == DATA and origin.log == []
    refused("credentials: a stranger after a restart", held=held)


async def test_a_lost_key_makes_everybody_prove_themselves(tmp_path: Path) -> None:
    """HMACs of another key match nobody; nobody is let in by mistake."""
    async with building(tmp_path, segments=64, revalidate="never") as world:
        origin = world.origin
        origin.put(NAME, DATA, allowed={OWNER.credential})
        await world.get(OWNER)
        await world.quiet()
    async with building(tmp_path, segments=64, revalidate="never", origin=origin) as world:
        world.resolver.versions._hmac_key = b"n" * 32
        origin.log.clear()
        await world.get(OWNER)
        refused("credentials: after a lost key", held=len(origin.log) == 1 and await is_denied(world, NOBODY))


def test_a_signature_is_a_credential_and_no_part_of_the_name() -> None:
    """Two presigned URLs of one object are one shard and two credentials."""
    signed = [f"https://h/0.tar?X-Amz-Signature={word}&X-Amz-Security-Token={word}" for word in ("SIGN1", "SIGN2")]
    one, other = (Shard.of(parse_origin_url(url)) for url in signed)
    held = one.name == other.name == "https://h/0.tar" and one.credential.mac(b"k") != other.credential.mac(b"k")
    refused("credentials: a signature as part of a name", held=held and "SIGN" not in repr(one))


def test_credentials_do_not_run_into_each_other() -> None:
    """Names, values and their borders all count: no two credentials share an HMAC by being written differently."""
    made = [
        Credential((("Authorization", "a"),)), Credential((("Cookie", "a"),)), Credential((("Authorization", "ab"),)),
        Credential((("Authorization", "a"), ("Cookie", "b"))), Credential((("Authorization", "a\ncookie\0b"),)), Credential((), "a"),
        Credential((("X-A", "a"),), "b"), Credential((("X-A", "ab"),)), Credential((("X-A", ""),), "ab"),
    ]  # fmt: skip
    refused("credentials: two with one HMAC", held=len({credential.mac(b"k") for credential in made}) == len(made))


@pytest.mark.parametrize(
    "name",
    ["Forebay-Token", "Forebay-Reader", "Host", "Range", "If-Match", "Proxy-Authorization", "Connection", "Transfer-Encoding",
     "Content-Length", "Te", "X-Forwarded-For",
     "X-Forwarded-Host", "Forwarded", "Via", "Referer", "Origin", "User-Agent", "Accept-Encoding",
     "Expect", "Upgrade"],
)  # fmt: skip
def test_only_credentials_travel(name: str) -> None:
    """Everything else a client sends is for us."""
    sent = ((name, "secret"), ("Authorization", "a"), ("cookie", "b"), ("X-Amz-Security-Token", "c"))
    refused(f"credentials: the header {name} travels", held=credential_headers(sent) == sent[1:])


def test_a_credential_goes_to_the_host_it_named_and_no_further(tmp_path: Path) -> None:
    """A redirect to another host gets neither headers nor cookies; the sidecar's token goes nowhere at all."""
    with (
        in_a_thread(ScriptedOrigin(anything=Leaks())) as other,
        in_a_thread(ScriptedOrigin(anything=Leaks(other.base))) as origin,
        running(tmp_path, "--cache-size", "50MB", allow=[origin.base, other.base], environ={"FOREBAY_TOKEN": "T0KEN"}) as sidecar,
    ):
        assert ask(sidecar, origin.url("/elsewhere-0.tar")) == 200
    sent, further = " ".join(sent_to(origin)), " ".join(sent_to(other))
    held = "TRAVELLER" in sent and "TRAVELLER" not in further and further != "" and "T0KEN" not in sent + further
    refused("credentials: headers that follow a redirect", held=held)


def ask(sidecar: Sidecar, url: str) -> int:
    headers = {"Authorization": "Bearer TRAVELLER", "Cookie": "a=TRAVELLER", "X-Vault-Token": "TRAVELLER", "Forebay-Token": "T0KEN"}
    with urllib.request.urlopen(urllib.request.Request(sidecar.proxied(url), headers=headers), timeout=120) as answer:
        answer.read()
        return int(answer.status)


def test_no_job_is_given_anothers_credential_by_a_plan() -> None:
    """Many ways of announcing the same shards, and of taking that back: each job's come with what it brought, or with nothing."""
    plans = PlanRegistry(lambda: 0.0)
    urls = [f"https://h/{number}.tar" for number in range(4)]
    brought: dict[ReaderName, set[tuple[str, str]]] = {}

    def tell(job: str, body: dict[str, object], value: str = "", signature: str = "") -> ReaderName:
        headers = (("Authorization", value),) if value else ()
        plan, _ = parse_plan("application/json", json.dumps(body).encode(), "", headers, expand=False)
        entries = Entries(plan.shards, headers, pattern=plan.set or "", indices=plan.indices)
        reader = ReaderName(job, "0", "0", "1.1")
        plans.replace(reader, entries, plan.epoch, plan.set)
        brought[reader] = {(value, signature)}
        return reader

    def check() -> None:
        for reader, own in brought.items():
            plan = plans.get(reader)
            assert plan is not None
            credentials = [plans.shard_at(plan, index).credential for index in range(len(plan))]
            assert {("".join(value for _, value in found.headers), found.signature) for found in credentials} == own, reader

    pattern = {"set": "https://h/{0..3}.tar", "indices": [3, 0, 1, 2]}
    first = tell("a", {"shards": urls}, "a")
    tell("b", {"shards": urls[::-1]})
    tell("c", pattern)
    tell("d", pattern, "d")
    tell("e", {"shards": [f"{url}?X-Amz-Signature=e" for url in urls]}, signature="X-Amz-Signature=e")
    tell("f", {"shards": urls}, "f")
    check()
    plans.withdraw(first)
    del brought[first]
    plans.storage.tidy()
    check()
    tell("g", {"shards": urls})
    tell("b", pattern, "b")  # the same reader, another way
    tell("f", {"shards": urls})  # and without, now
    check()
