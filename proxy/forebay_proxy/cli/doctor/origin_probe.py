"""One shard's origin, asked as the sidecar would ask it: who is asked for, first byte, bytes a second, Range, version, clock."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay_proxy.config.settings import Settings
from forebay_proxy.core.errors import ForebayError
from forebay_proxy.core.http_range import http_date
from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.core.shard import ByteRange, Pin, Shard, Version
from forebay_proxy.origins.base import Origin
from forebay_proxy.origins.http_client import OverHttp
from forebay_proxy.origins.survey import origins_for

__all__ = ["OriginFacts", "credentials_of", "probed"]

AT_ONCE = 8  # ranges: what one reader's window asks for at its beginning
WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class OriginFacts:
    """``alone_bytes_s`` over one connection, ``together_bytes_s`` over ``AT_ONCE``; 0 where the shard is too short to tell. ``skew_s``: how
    far the origin's clock is ahead of this machine's; None: it does not say."""

    version: Version
    ranged: bool
    first_byte_s: float
    alone_bytes_s: float
    together_bytes_s: float
    skew_s: float | None


def probed(shard: Shard, settings: Settings, environ: Mapping[str, str] = os.environ) -> OriginFacts:
    """Fetches nine segments at most. Raises ``ForebayError``."""
    return asyncio.run(_probed(shard, settings, environ))


async def _probed(shard: Shard, settings: Settings, environ: Mapping[str, str]) -> OriginFacts:
    origins = origins_for(settings, environ)
    origin = origins.by_scheme[shard.url.scheme]
    try:
        async with asyncio.timeout(WITHIN_S):
            skew_s = await _skew(origin, shard)
            began = time.monotonic()
            async with origin.read(shard, ByteRange(0, SEGMENT_BYTES - 1), Pin()) as body:
                first_s, size = time.monotonic() - began, 0
                async for piece in body.chunks:
                    size += len(piece)
                    if size >= SEGMENT_BYTES:
                        break
            took = time.monotonic() - began - first_s
            alone = size / took if size == SEGMENT_BYTES else 0.0
            together = await _together(origin, shard, body.version) if alone and body.ranged else 0.0
            return OriginFacts(body.version, body.ranged, first_s, alone, together, skew_s)
    except TimeoutError:
        raise ForebayError(f"{shard.origin} gave less than {AT_ONCE + 1} segments of 8 MiB within {WITHIN_S:g} s") from None
    finally:
        await origins.aclose()


async def _together(origin: Origin, shard: Shard, version: Version) -> float:
    """Bytes a second over ``AT_ONCE`` connections."""
    last = (version.length or 0) // SEGMENT_BYTES
    wanted = [1 + number % max(1, last - 1) for number in range(AT_ONCE)] if last > 1 else []
    if not wanted:
        return 0.0

    async def one(index: int) -> int:
        size, first = 0, index * SEGMENT_BYTES
        async with origin.read(shard, ByteRange(first, first + SEGMENT_BYTES - 1), version.pin) as body:
            async for piece in body.chunks:
                size += len(piece)
        return size

    began = time.monotonic()
    sizes = await asyncio.gather(*map(one, wanted))
    return sum(sizes) / (time.monotonic() - began)


async def _skew(origin: Origin, shard: Shard) -> float | None:
    """By the Date of a HEAD, whatever that is answered with."""
    if not isinstance(origin, OverHttp):
        return None
    began = time.time()  # not a duration: this machine's clock is what is compared
    _, answer = await origin.origin_client.glance(shard, await origin.prepare(shard))
    said = http_date(answer.headers.get("date", ""))
    return None if said is None else said - (began + time.time()) / 2


def credentials_of(shard: Shard, environ: Mapping[str, str]) -> str:
    """Whose credentials an origin is shown, and until when; no part of a secret. Raises ``ForebayError`` where they cannot be had."""
    if shard.credential:
        return "those of the request: " + ", ".join([name for name, _ in shard.credential.headers] or ["the URL's signature"])
    match shard.url.scheme:
        case "s3":
            return _aws(shard)
        case "hf":
            return "the token in HF_TOKEN" if environ.get("HF_TOKEN") else "the token that 'hf auth login' wrote, if there is one"
        case "gs":
            named = environ.get("GOOGLE_APPLICATION_CREDENTIALS")
            return f"Google's, from {named}" if named else "Google's application default credentials, if there are any"
        case "file":
            return f"those of user {os.getuid()}"
    return "none: the URL and its headers carry none"


_FOUND = {
    "env": "the environment", "shared-credentials-file": "~/.aws/credentials", "config-file": "~/.aws/config",
    "iam-role": "this machine's role", "container-role": "this container's role",
}  # fmt: skip


def _aws(shard: Shard) -> str:
    import boto3  # noqa: PLC0415  (loads the SDK)

    from forebay_proxy.origins.cloud.s3_signer import mapped_sdk_errors  # noqa: PLC0415

    options = shard.url.options()
    if "unsigned" in options:
        return "none: unsigned=1"
    with mapped_sdk_errors(shard.name):
        session = boto3.Session(profile_name=options.get("profile") or None, region_name=options.get("region") or None)
        found = session.get_credentials()
        if found is None:
            raise ForebayError("the AWS SDK finds no credentials", next_step="aws configure, or unsigned=1 for a public bucket")
        frozen = found.get_frozen_credentials()  # of a role: asked for now
    where = _FOUND.get(found.method, found.method) + ("" if found.method == "env" else f", profile {session.profile_name}")
    until = getattr(found, "_expiry_time", None)
    ends = f"until {until:%Y-%m-%d %H:%M} UTC" if until is not None else "without an end"
    if until is None and frozen.token:
        ends = "a session token, which does not say until when"
    who = "" if options.get("endpoint") else _caller(session)  # where a URL leads, keys sign nothing but what the operator allowed
    return f"AWS{f', {who}' if who else ''}, key ****{(frozen.access_key or '')[-4:]} from {where}, {ends}"


def _caller(session: Any) -> str:
    """As whom STS knows these credentials: AWS's own, or at the endpoint that S3 requests go to. "" where none answers."""
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
    from botocore.parsers import ResponseParserError  # noqa: PLC0415

    from forebay_proxy.origins.cloud.s3_request import is_aws  # noqa: PLC0415
    from forebay_proxy.origins.net.allow_list import place_of  # noqa: PLC0415

    config = Config(connect_timeout=2, read_timeout=3, retries={"total_max_attempts": 1})
    try:
        endpoint = session.client("s3", config=config).meta.endpoint_url
        region = session.region_name or "us-east-1"
        sts = session.client("sts", region_name=region, endpoint_url=None if is_aws(place_of(endpoint)) else endpoint, config=config)
        said = str(sts.get_caller_identity()["Arn"])
    except (BotoCoreError, ClientError, ResponseParserError, KeyError, ValueError):
        return ""
    return f"as {said}" if said.isprintable() and len(said) < 200 else ""
