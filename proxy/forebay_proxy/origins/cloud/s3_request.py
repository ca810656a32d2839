"""What an s3 URL orders: bucket, key, version, and the client it must be signed by. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from forebay_proxy.core.errors import InvalidShard
from forebay_proxy.core.shard import Shard
from forebay_proxy.origins.net.allow_list import AllowedPlace, place_of

__all__ = ["SIGNED_FOR_S", "ClientKey", "S3Request", "S3Signature", "is_aws", "order_of"]

# Ten minutes: the SDK renews temporary credentials when less than ten are left, so a signature never outlives its token.
SIGNED_FOR_S = 600

_AWS_HOST = re.compile(r"s3[.-][a-z0-9.-]*amazonaws\.com(\.cn)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ClientKey:
    """Everything that makes one SDK client different from another; "" leaves a value to the SDK's own chain."""

    profile: str = ""
    region: str = ""
    endpoint: str = ""
    unsigned: bool = False


@dataclass(frozen=True, slots=True)
class S3Request:
    """One object, and how to ask for it. ``endpoint`` is the place of the client's endpoint, None for the SDK's own."""

    client: ClientKey
    bucket: str
    key: str
    version_id: str = ""
    requester_pays: bool = False
    endpoint: AllowedPlace | None = None

    def signed_for(self, region: str) -> S3Request:
        return replace(self, client=replace(self.client, region=region))


@dataclass(frozen=True, slots=True)
class S3Signature:
    """A URL that needs no further secret, the headers that were signed with it, the region it was signed for."""

    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...]
    region: str


def order_of(shard: Shard) -> S3Request:
    """Read the options of an s3 URL. Raises ``InvalidShard`` for an endpoint that is none."""
    options = shard.url.options()
    endpoint = options.get("endpoint", "")
    try:
        place = place_of(endpoint) if endpoint else None
    except ValueError as error:
        raise InvalidShard(shard.name, "the endpoint option is not an http(s) URL such as https://s3.example.org") from error
    client = ClientKey(options.get("profile", ""), options.get("region", ""), endpoint, "unsigned" in options)
    return S3Request(client, shard.url.authority, shard.url.key(), options.get("versionId", ""), "requester_pays" in options, place)


def is_aws(place: AllowedPlace) -> bool:
    """Whether a place is AWS's own S3, which the SDK goes to unless told otherwise."""
    return place.scheme == "https" and _AWS_HOST.fullmatch(place.host) is not None
