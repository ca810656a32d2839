"""gs origins: Google Cloud Storage over its XML API, with application default credentials or none.

The sidecar's token goes to Google's own endpoint or the one the operator named (``--gs-endpoint``), and with no redirect to another host.
An emulator (STORAGE_EMULATOR_HOST) gets none. Bytes are asked for as they are stored: without ``Accept-Encoding: gzip`` the service would
unpack objects that were stored compressed, with another length, no ranges, and checksums of something else.

google-auth is loaded by the first gs shard that needs it: a sidecar that never sees one saves 30 MB and half a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from forebay_proxy.core.errors import ConfigError, ShardError
from forebay_proxy.core.shard import ByteRange, Pin, Shard, Version
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.origins.errors import refused
from forebay_proxy.origins.http import HttpOrigin
from forebay_proxy.origins.net.allow_list import has_user, place_of
from forebay_proxy.origins.net.guard import Guard, Refused
from forebay_proxy.origins.request import OriginRequest, RequestTarget
from forebay_proxy.origins.response import OriginResponse

if TYPE_CHECKING:
    from forebay_proxy.origins.cloud.gs_auth import Authorization, Google

__all__ = ["GOOGLE", "GsOrigin", "emulator_endpoint"]

log = logging.getLogger("forebay")

T = TypeVar("T")
GOOGLE = "https://storage.googleapis.com"
_AS_STORED = ("Accept-Encoding", "gzip")


class GsOrigin(RequestTarget):
    """All buckets; an ``Origin``, and the ``RequestTarget`` of its requests."""

    def __init__(
        self,
        http: HttpOrigin,
        *,
        guard: Guard,
        endpoint: str = "",
        anonymous: bool = False,
        google: Google | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``endpoint``: where the operator sends gs requests, "" for Google. ``clock`` is the wall's: it dates tokens.

        Raises ``ConfigError`` for an endpoint that holds a user.
        """
        self.origin_client = http.origin_client
        self._guard = guard
        if has_user(endpoint):  # as for a hub: one request cannot prove itself twice
            step = "write the address alone into --gs-endpoint or STORAGE_EMULATOR_HOST"
            raise ConfigError("the endpoint for gs:// holds a user or a password", next_step=step)
        self._endpoint = endpoint.rstrip("/") or GOOGLE
        self._anonymous = anonymous
        self._google = google  # the thread's: nobody else touches it
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="forebay-google")
        self._now: Authorization | None = None
        self._said = anonymous

    def read(self, shard: Shard, range: ByteRange | None, pin: Pin) -> AbstractAsyncContextManager[OriginBody]:
        return self.origin_client.read(self, shard, range, pin)

    async def head(self, shard: Shard) -> Version:
        return await self.origin_client.head(self, shard)

    async def aclose(self) -> None:
        """Ends the thread; the client belongs to the http origin."""
        if self._google is not None:
            await self._library(lambda google: google.close())
        self._thread.shutdown(wait=False)

    async def prepare(self, shard: Shard) -> OriginRequest:
        self._permit(shard)
        # A reader's own headers never travel beside the sidecar's token: they could say what the token is used for.
        own = shard.credential
        return self._ask(shard, own.headers if own.has_authorization else await self._headers(shard))

    async def again(self, shard: Shard, ask: OriginRequest, answer: OriginResponse) -> OriginRequest | None:
        """A token that is refused: everything is read anew, once, and asked again if that made another one."""
        if answer.status not in (401, 403) or self._anonymous or shard.credential.has_authorization:
            return None
        rejected = tuple(header for header in ask.headers if header != _AS_STORED)
        try:
            self._now = await self._library(lambda google: google.instead(shard.name, rejected))
        except ShardError:
            return None  # what the storage said is nearer to the matter
        second = self._ask(shard, self._now.headers)
        return None if second.headers == ask.headers else second

    def _ask(self, shard: Shard, headers: tuple[tuple[str, str], ...]) -> OriginRequest:
        # Everything that is not a plain character, as the service wants it: "+" in a path would be a space to some.
        url = f"{self._endpoint}/{shard.url.authority}/{quote(shard.url.key(), safe='/~')}"
        return OriginRequest(url, (_AS_STORED, *headers), vouched=True)

    def _permit(self, shard: Shard) -> None:
        try:
            # Google's own endpoint holds everybody's buckets: under strict origins each is named.
            endpoint = None if self._endpoint == GOOGLE else place_of(self._endpoint)
            self._guard.check_bucket("gs", shard.url.authority, True, endpoint)
        except Refused as error:
            raise refused(shard.name, error) from error

    async def _headers(self, shard: Shard) -> tuple[tuple[str, str], ...]:
        """The sidecar's own credential, from memory while it is good."""
        if self._anonymous:
            return ()
        if self._now is None or self._clock() >= self._now.until:
            self._now = await self._library(lambda google: google.authorization(shard.name))
        if not self._now.headers and not self._said:
            self._said = True
            log.warning("gs: no Google credentials were found, so only public objects are read (gcloud auth application-default login)")
        return self._now.headers

    async def _library(self, call: Callable[[Google], T]) -> T:
        """Run ``call`` in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._with_google, call)

    def _with_google(self, call: Callable[[Google], T]) -> T:
        if self._google is None:
            from forebay_proxy.origins.cloud.gs_auth import Google  # noqa: PLC0415  (loads the library)

            self._google = Google()
        return call(self._google)


def emulator_endpoint(text: str) -> str:
    """STORAGE_EMULATOR_HOST as a URL; "" for none."""
    return text if not text or "://" in text else f"http://{text}"
