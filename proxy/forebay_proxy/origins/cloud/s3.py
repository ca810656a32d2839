"""s3 origins: presigned once by the AWS SDK in a thread of its own, moved by the HTTP client.

The sidecar's own credentials go only where the operator sent them: AWS itself, the endpoint of the SDK's configuration (environment,
file, profile), or what ``--allow-origin`` names. A client may name another endpoint, but only with ``unsigned=1``; and another profile
only if the operator allowed it, because each profile is another person's key.

The SDK is loaded by the first s3 shard: a sidecar that never sees one saves 30 MB and a third of a second.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl, urlsplit

from forebay_proxy.core.digests import Digest
from forebay_proxy.core.errors import OriginRefused, ShardChanged
from forebay_proxy.core.shard import ByteRange, Pin, Shard, Version
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.origins.cloud.s3_request import SIGNED_FOR_S, S3Request, S3Signature, is_aws, order_of
from forebay_proxy.origins.digests import offered
from forebay_proxy.origins.errors import refused
from forebay_proxy.origins.http import HttpOrigin
from forebay_proxy.origins.net.allow_list import AllowedPlace
from forebay_proxy.origins.net.guard import Guard, Refused
from forebay_proxy.origins.request import OriginRequest, RequestTarget
from forebay_proxy.origins.response import OriginResponse, check_pin

if TYPE_CHECKING:
    from forebay_proxy.origins.cloud.s3_signer import Signer

__all__ = ["S3Origin"]

T = TypeVar("T")

RENEW_BEFORE_S = 60.0  # a request may wait this long between signing and sending
_SIGNATURES_MAX = 4096  # about 1.5 kB each
_REGIONS_MAX = 1024
_RECREDENTIAL_S = 10.0  # how often rejected credentials are looked up anew; more would only slow everybody's signing
_BAD_TOKENS = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"})
_ELSEWHERE = frozenset({301, 302, 307, 400, 403})
_REGION = re.compile(rb"<Region>([a-z0-9-]{1,32})</Region>")


class S3Origin(RequestTarget):
    """All buckets of all endpoints; an ``Origin``, and the ``RequestTarget`` of its requests."""

    def __init__(
        self,
        http: HttpOrigin,
        *,
        guard: Guard,
        profiles: frozenset[str] | None = None,
        signer: Signer | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``profiles``: those a request may name beside the SDK's own (AWS_PROFILE). ``clock`` is the wall's: it dates signatures."""
        self.origin_client = http.origin_client
        self._guard = guard
        self._profiles = profiles or frozenset()
        self._signer = signer  # the thread's: nobody else touches it
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="forebay-sign")
        self._signatures: OrderedDict[str, tuple[float, S3Signature]] = OrderedDict()  # by shard name, with when it was made
        self._regions: OrderedDict[tuple[str, str, str], str] = OrderedDict()  # (profile, endpoint, bucket) -> where it really lives
        self._homes: dict[str, AllowedPlace] = {}  # by profile
        self._own_profile: str | None = None
        self._recredentialed: dict[str, float] = {}  # by profile

    def read(self, shard: Shard, range: ByteRange | None, pin: Pin) -> AbstractAsyncContextManager[OriginBody]:
        return self.origin_client.read(self, shard, range, pin)

    async def head(self, shard: Shard) -> Version:
        return await self.origin_client.head(self, shard)

    async def digests(self, shard: Shard, pin: Pin) -> tuple[Digest, ...]:
        """As ``TellsDigests``: S3 names an object's checksum on a HEAD or a whole GET if a signed header asks for it; not on a range."""
        order = order_of(shard)
        named = await self._permit(shard, order)
        region = self._regions.get(self._place_of_bucket(order))
        wanted = order.signed_for(region) if region else order
        signature = await self._sdk(lambda signer: signer.sign(shard.name, wanted, checksum=True))
        _, answer = await self.origin_client.glance(
            shard, OriginRequest(signature.url, signature.headers, vouched=named, region=signature.region, sdk=True)
        )
        if answer.status != 200:
            return ()
        try:
            check_pin(shard.name, answer.headers, pin)
        except ShardChanged:
            return ()  # of another version: who reads finds out by itself
        return offered(answer.headers, whole=True)

    async def aclose(self) -> None:
        """Ends the signing thread; the client belongs to the http origin."""
        if self._signer is not None:
            await self._sdk(lambda signer: signer.close())
        self._thread.shutdown(wait=False)

    async def prepare(self, shard: Shard) -> OriginRequest:
        order = order_of(shard)
        named = await self._permit(shard, order)
        made, signature = self._signatures.get(shard.name, (0.0, None))
        fresh = signature is None or not 0 <= self._clock() - made < SIGNED_FOR_S - RENEW_BEFORE_S
        if signature is None or fresh:
            signature = await self._sign(shard, order)
        return OriginRequest(
            signature.url,
            signature.headers,
            vouched=named,
            signed_for_get=not order.client.unsigned,
            fresh=fresh,
            region=signature.region,
            sdk=True,
        )

    async def again(self, shard: Shard, ask: OriginRequest, answer: OriginResponse) -> OriginRequest | None:
        """A bucket that lives elsewhere, a signature or a token that ran out, keys that were changed: signed anew, once."""
        order = order_of(shard)
        region = _region_of(answer)
        if region and region != ask.region and answer.status in _ELSEWHERE:
            _keep(self._regions, self._place_of_bucket(order), region, _REGIONS_MAX)
            return await self._signed_anew(shard)
        if order.client.unsigned or answer.status not in (400, 401, 403):
            return None
        bad = answer.code in _BAD_TOKENS
        looked = await self._recredential(order.client.profile)
        second = await self._signed_anew(shard)
        # Signed with the same keys for the same region the answer would be the same.
        same = ask.region == second.region and _keys_in(ask.url) == _keys_in(second.url)
        return None if same and (ask.fresh or (bad and not looked)) else second

    async def _signed_anew(self, shard: Shard) -> OriginRequest:
        self._signatures.pop(shard.name, None)
        return replace(await self.prepare(shard), fresh=True)

    async def _permit(self, shard: Shard, order: S3Request) -> bool:
        """Whether the operator named where this order goes; raises ``OriginRefused`` where it may not go."""
        await self._permit_profile(shard, order.client.profile)
        home = await self._home(shard, order.client.profile)
        named = order.endpoint is None or order.endpoint == home or self._guard.names(order.endpoint)
        named = named or (order.endpoint is not None and is_aws(order.endpoint) and is_aws(home))
        if not named and not order.client.unsigned and order.endpoint is not None:
            raise OriginRefused(
                shard.name,
                f"the operator did not name the endpoint {order.endpoint.text()}, so the sidecar's credentials sign nothing for it",
                next_step=f"--allow-origin {order.endpoint.text()} allows it; unsigned=1 asks without credentials",
            )
        try:
            # Only an endpoint out of the ordinary is an answer to strict origins: AWS itself holds everybody's buckets.
            self._guard.check_bucket("s3", order.bucket, named, order.endpoint or (None if is_aws(home) else home))
        except Refused as error:
            raise refused(shard.name, error) from error
        return named

    async def _permit_profile(self, shard: Shard, profile: str) -> None:
        if not profile or profile in self._profiles:
            return
        if self._own_profile is None:
            self._own_profile = await self._sdk(lambda signer: signer.own_profile())
        if profile != self._own_profile:
            raise OriginRefused(
                shard.name, f"requests may not use the AWS profile {profile!r}", next_step=f"--allow-profile {profile} allows it"
            )

    async def _home(self, shard: Shard, profile: str) -> AllowedPlace:
        if profile not in self._homes:
            self._homes[profile] = await self._sdk(lambda signer: signer.home(shard.name, profile))
        return self._homes[profile]

    async def _sign(self, shard: Shard, order: S3Request) -> S3Signature:
        region = self._regions.get(self._place_of_bucket(order))
        made = self._clock()
        signature = await self._sdk(lambda signer: signer.sign(shard.name, order.signed_for(region) if region else order))
        _keep(self._signatures, shard.name, (made, signature), _SIGNATURES_MAX)
        return signature

    async def _recredential(self, profile: str) -> bool:
        """Read the credentials of ``profile`` anew; False if that was done a moment ago."""
        now = self._clock()
        if abs(now - self._recredentialed.get(profile, float("-inf"))) < _RECREDENTIAL_S:
            return False
        self._recredentialed[profile] = now
        if await self._sdk(lambda signer: signer.reread(profile)):
            self._signatures.clear()  # all of them may carry the rejected token
        return True

    async def _sdk(self, call: Callable[[Signer], T]) -> T:
        """Run ``call`` in the signing thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._with_signer, call)

    def _with_signer(self, call: Callable[[Signer], T]) -> T:
        if self._signer is None:
            from forebay_proxy.origins.cloud.s3_signer import Signer  # noqa: PLC0415  (loads the SDK)

            self._signer = Signer()
        return call(self._signer)

    @staticmethod
    def _place_of_bucket(order: S3Request) -> tuple[str, str, str]:
        return (order.client.profile, order.client.endpoint, order.bucket)


def _keys_in(url: str) -> tuple[str, str]:
    said = dict(parse_qsl(urlsplit(url).query))
    return said.get("X-Amz-Credential", "").partition("/")[0], said.get("X-Amz-Security-Token", "")


def _region_of(answer: OriginResponse) -> str:
    """Where the bucket really lives, from the header or the error body; "" if the answer does not say."""
    header = answer.headers.get("x-amz-bucket-region", "")
    if re.fullmatch(r"[a-z0-9-]{1,32}", header):
        return header
    found = _REGION.search(answer.body)
    return found[1].decode("ascii") if found else ""


K = TypeVar("K")
V = TypeVar("V")


def _keep(memory: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > most:
        memory.popitem(last=False)
