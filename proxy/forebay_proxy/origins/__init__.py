"""Where shards live: one ``Origin`` per kind of place, found by scheme."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from forebay_proxy.errors import InvalidShard
from forebay_proxy.events import Events
from forebay_proxy.origins.base import Body, Origin
from forebay_proxy.origins.file import FileOrigin
from forebay_proxy.origins.guard import Guard
from forebay_proxy.origins.http import HttpOrigin
from forebay_proxy.origins.s3 import S3Origin

__all__ = ["Body", "Guard", "Origin", "Origins"]

_LATER = {"gs": "Google Cloud Storage", "hf": "Hugging Face"}


class Origins:
    """The origins of one sidecar. They share a guard and one HTTP session; ``aclose`` ends them all."""

    def __init__(self, http: HttpOrigin, s3: S3Origin, file: FileOrigin) -> None:
        self._by_scheme: dict[str, Origin] = {"http": http, "https": http, "s3": s3, "file": file}
        self._to_close: tuple[Origin, ...] = (file, s3, http)  # s3 moves its bytes with http

    @classmethod
    def create(
        cls,
        *,
        guard: Guard,
        events: Events,
        file_roots: Iterable[Path] = (),
        profiles: frozenset[str] = frozenset(),
        connect_timeout_s: float = 10.0,
        idle_timeout_s: float = 15.0,
        user_agent: str = "forebay",
    ) -> Origins:
        """Build all of them. Opens nothing yet: neither a session nor the AWS SDK."""
        http = HttpOrigin(
            guard=guard, events=events, connect_timeout_s=connect_timeout_s, idle_timeout_s=idle_timeout_s, user_agent=user_agent
        )
        s3 = S3Origin(http, guard=guard, profiles=profiles)
        return cls(http, s3, FileOrigin(file_roots, events=events, idle_timeout_s=idle_timeout_s))

    def of(self, scheme: str) -> Origin:
        """The origin for a scheme. Raises ``InvalidShard`` (400) for one that is not served."""
        origin = self._by_scheme.get(scheme)
        if origin is not None:
            return origin
        if scheme in _LATER:
            raise InvalidShard(f"{scheme}://", f"{_LATER[scheme]} origins are not supported yet", next_step="use an https, s3 or file URL")
        raise InvalidShard(f"{scheme}://", "unknown scheme", next_step="use an http, https, s3 or file URL")

    async def aclose(self) -> None:
        for origin in self._to_close:
            await origin.aclose()
