"""What loaders and people send to our own paths, read and checked: plans, readers, evict lists. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import parse_qsl

from forebay_proxy.errors import InvalidRequest
from forebay_proxy.shard import Shard
from forebay_proxy.verifying import RATE_BYTES_S
from forebay_proxy.wire.plan import NDJSON, InvalidPlan, PlanBody, ReaderName, decode
from forebay_proxy.wire.urls import InvalidShardUrl, ShardUrl, parse_origin_url

__all__ = [
    "COMMAND_BODY_BYTES", "MAX_PATTERNS", "PLAN_BODY_BYTES", "parse_patterns", "parse_plan", "parse_rate", "parse_reader", "shards_of",
]  # fmt: skip

PLAN_BODY_BYTES = 64 * 1024 * 1024  # the contract
LIST_BODY_BYTES = 1024 * 1024  # the contract: a longer list is sent as lines, which can be read one by one
COMMAND_BODY_BYTES = 1024 * 1024  # an evict list; a pattern says the same in a hundred bytes
MAX_PATTERNS = 10_000

# Unreserved characters only: no parser changes them, whatever the scheme. "." and ".." it would.
_PLAIN_LEAF = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)


def parse_plan(content_type: str, body: bytes, query: str, headers: tuple[tuple[str, str], ...]) -> tuple[PlanBody, list[Shard]]:
    """Runs in the parser's own thread for large bodies: touches nothing but its arguments."""
    if len(body) > LIST_BODY_BYTES and not content_type.startswith(NDJSON) and b'"indices"' not in body:
        step = f"send NDJSON ({NDJSON}, a JSON string a line), or a pattern with indices"
        raise InvalidRequest(f"a JSON list of {len(body)} bytes, and {LIST_BODY_BYTES} are taken", status=413, next_step=step)
    try:
        plan = decode(content_type, body, query)
        return plan, shards_of(plan.shards, headers)
    except (InvalidPlan, InvalidShardUrl) as error:
        step = 'send {"shards": ["s3://bucket/00000.tar", …]}, or NDJSON with one URL a line as application/x-ndjson'
        raise InvalidRequest(str(error), next_step=step) from error


def shards_of(texts: Iterable[str], headers: tuple[tuple[str, str], ...] = ()) -> list[Shard]:
    """The shards that ``texts`` name. ``headers`` go to the first one's host and to no other. Raises ``InvalidShardUrl``.

    A plan of half a million shards names few folders: the first of a folder is parsed, its plain siblings are put together from it. That
    takes 3 instead of 12 us each, and this is a thread that shares the interpreter with the loop.
    """
    folders: dict[str, Shard] = {}
    shards: list[Shard] = []
    for text in texts:
        folder, _, leaf = text.rpartition("/")
        plain = _PLAIN_LEAF.fullmatch(leaf) is not None and folder.count("/") >= 2  # the third slash ends the host or bucket
        first = folders.get(folder) if plain else None
        shard = _named(text, headers, shards[0].origin if shards else None) if first is None else _sibling(first, leaf)
        if plain:
            folders.setdefault(folder, shard)
        shards.append(shard)
    return shards


def _named(text: str, headers: tuple[tuple[str, str], ...], host: str | None) -> Shard:
    shard = Shard.of(parse_origin_url(text), headers)
    return shard if host is None or shard.origin == host else Shard.of(shard.url)


def _sibling(first: Shard, leaf: str) -> Shard:
    """The shard named ``leaf`` in the folder of ``first``, neither of which has a query."""
    url = first.url
    path = url.path[: url.path.rindex("/") + 1] + leaf
    return Shard(ShardUrl(url.scheme, url.authority, path, ""), first.group + leaf, first.credential)


def parse_reader(target: str) -> ReaderName:
    try:
        return ReaderName.parse(target.partition("?")[0].removeprefix("/v1/plans/"))
    except ValueError as error:
        raise InvalidRequest(f"the plan's reader: {error}", next_step="use /v1/plans/{job}/{rank}/{worker}/{opener}") from error


def parse_rate(query: str) -> float:
    """Bytes a second from the ``rate`` of a verify request's query; the default without one. Raises ``InvalidRequest``."""
    text = dict(parse_qsl(query)).get("rate", str(RATE_BYTES_S))
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 16 and int(text)):
        raise InvalidRequest(f"rate is {text[:40]!r}, not a number of bytes a second", next_step="leave it out, or write ?rate=500000000")
    return float(text)


def parse_patterns(body: bytes) -> list[str] | None:
    """What an evict body names; None for everything. Raises ``InvalidRequest`` naming the first bad entry."""
    step = 'send {"shards": ["s3://bucket/train-*.tar"]} or {"all": true}'
    try:
        wish = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the body is not JSON", next_step=step) from error
    if isinstance(wish, dict) and set(wish) == {"all"} and wish["all"] is True:
        return None
    shards = wish.get("shards") if isinstance(wish, dict) and set(wish) == {"shards"} else None
    if not isinstance(shards, list) or not 0 < len(shards) <= MAX_PATTERNS:
        raise InvalidRequest(f"the body names neither all nor a list of 1 to {MAX_PATTERNS} shards", next_step=step)
    for index, text in enumerate(shards):
        if not isinstance(text, str) or not text:
            raise InvalidRequest(f"entry {index} of shards is not a URL or pattern", next_step=step)
    return shards
