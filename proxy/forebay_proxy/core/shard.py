"""A name for immutable bytes: canonical URL, version (identity and pin), credential, store key. Pure.

A shard's *name* is its canonical origin URL: scheme and host in lower case, default port, fragment and userinfo dropped, path and query as
received, less the parameters that prove who asks (``signing``). Those parameters, and the request headers that travel, are the
*credential*. A *version* has two halves: the *identity* makes the store key; the *pin* is what the answering host can compare.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache

from forebay_proxy.core import secret_parameters
from forebay_proxy.wire.commands.sources import masked_parts
from forebay_proxy.wire.urls.hf_url import repo_file
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, ShardUrl

__all__ = ["ByteRange", "Credential", "Pin", "PinKind", "Shard", "Version", "shown", "shown_set", "store_key"]


@dataclass(frozen=True, slots=True)
class ByteRange:
    """``bytes=first-last``, both inclusive as in RFC 9110; ``last=None`` means to the end."""

    first: int
    last: int | None = None

    def header(self) -> str:
        return f"bytes={self.first}-{'' if self.last is None else self.last}"


@dataclass(frozen=True, slots=True)
class SparseRange(ByteRange):
    """A range of which the reader says that it wants little of what lies around it; ``last`` is never None."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What a request carries to prove itself: headers and signature parameters. Never printed, never stored; only HMACs of it are.

    ``choosing``: those of the parameters that may choose the bytes too; a part of ``signature``.
    """

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    signature: str = field(default="", repr=False)
    choosing: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.headers or self.signature)

    @property
    def has_authorization(self) -> bool:
        return _has_authorization(self.headers)

    def variant(self, key: bytes) -> str:
        """The HMAC of what of it may choose the bytes: all but signatures. "" for none of that."""
        return Credential(self.headers, self.choosing).mac(key)

    def chosen_by(self, vary: Collection[str], key: bytes) -> str:
        """The HMAC of what chooses between variants where the origin names ``vary`` for it; "" where the request has nothing of it.

        Headers that never travel (``Accept-Encoding``, ``Origin``, ``User-Agent``) are the same in all our requests: they choose nothing.
        """
        return Credential(tuple(pair for pair in self.headers if pair[0].lower() in vary), self.choosing).mac(key)

    def mac(self, key: bytes) -> str:
        """HMAC-SHA256 (RFC 2104) of the credential as 32 hex digits; "" for no credential."""
        if not self:
            return ""
        # The length says where a value ends, whatever bytes are in it.
        lines = [f"{name.lower()}\0{len(value)}\0{value}" for name, value in sorted(self.headers)] + [self.signature]
        return hmac.new(key, "\n".join(lines).encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()[:32]


class PinKind(Enum):
    """What the answering host can compare."""

    ETAG = "etag"  # sent as If-Match
    MODIFIED = "modified"  # sent as If-Unmodified-Since
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Pin:
    """Holds an origin to one version while its bytes are fetched in pieces (RFC 9110, section 13.1)."""

    kind: PinKind = PinKind.NONE
    value: str = ""

    def __bool__(self) -> bool:
        return self.kind is not PinKind.NONE

    def headers(self) -> dict[str, str]:
        if self.kind is PinKind.ETAG:
            return {"If-Match": self.value}
        if self.kind is PinKind.MODIFIED:
            return {"If-Unmodified-Since": self.value}
        return {}


@dataclass(frozen=True, slots=True)
class Version:
    """One immutable state of a shard on its origin.

    ``identity`` is a short text such as ``etag:"abc"`` or ``s3:version-id``; "" when the origin offers nothing (then no two answers
    can be told apart, and nothing of it outlives its fetch). ``length`` is in bytes, None while unknown. ``encoding`` is the
    Content-Encoding the origin insisted on, "" for identity. ``modified`` is the answer's Last-Modified, "" where that is no date;
    ``second_over``: that second had passed by the origin's own clock when it told it, so that no later version can have the same date
    (RFC 9110, section 8.8.2.2).
    """

    identity: str
    pin: Pin
    length: int | None
    encoding: str = ""
    content_type: str = ""
    modified: str = ""
    second_over: bool = False
    vary: tuple[str, ...] = field(default=(), compare=False)  # request headers, in lower case, that it was chosen by; "*": by all
    led: bool = field(default=False, compare=False)  # one of these chose where a redirect led

    @property
    def is_weak(self) -> bool:
        """Whether two variants of one state may have the same identity: no more is promised for a date, or for a weak ETag.

        Nor for any ETag where they are resources of their own, to which a redirect leads: it tells versions of one resource apart, and
        many are made of date and length alone.
        """
        return self.led or self.identity.startswith(("weak:", "modified:"))

    def etag(self, key: str) -> str:
        """The ETag our own answers carry: the origin's strong one, else one made from the store key."""
        if self.pin.kind is PinKind.ETAG:
            return self.pin.value
        return f'"fb-{key[:32]}"'


def store_key(name: str, identity: str, chosen: str = "") -> str:
    """64 hex digits that name the stored file and the index row of one version: SHA-256 over name and identity, and what chose it."""
    text = f"{name}\n{identity}\n{chosen}" if chosen else f"{name}\n{identity}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, slots=True)
class Shard:
    """What a reader asked for: a name for immutable bytes, and the credential that came with the asking."""

    url: ShardUrl = field(repr=False)  # as asked, signature included: a secret
    name: str
    credential: Credential = Credential()
    via: str = field(default="", compare=False)  # which sidecars the asking has passed (``request_loop``); says nothing about the bytes
    meant: str = field(default="", compare=False)  # the ETag of the version that is asked for: while that is here nobody asks the origin

    @classmethod
    def of(cls, url: ShardUrl, headers: tuple[tuple[str, str], ...] = ()) -> Shard:
        """Split ``url`` into the name and the credential in it; ``headers`` are the request headers that travel."""
        headers = _travelling(url.scheme, headers)
        if not url.query or url.scheme not in ("http", "https"):
            return cls(url, url.text(), Credential(headers))
        kept, signature, choosing = secret_parameters.cut(url.query)
        name = ShardUrl(url.scheme, url.authority, url.path, kept).text()
        return cls(url, name, Credential(headers, signature, choosing))

    def carrying(self, headers: tuple[tuple[str, str], ...]) -> Shard:
        """The same shard, asked for with ``headers`` instead."""
        return replace(self, credential=replace(self.credential, headers=_travelling(self.url.scheme, headers)))

    @property
    def origin(self) -> str:
        """Scheme and host, as metrics and the limiter know it."""
        return f"{self.url.scheme}://{self.url.authority}"

    @property
    def is_immutable(self) -> bool:
        """Whether the name itself says which version it means (an S3 version id, a commit of a hub): then nobody need be asked again."""
        if self.url.scheme == "s3":
            return self.url.options().get("versionId", "") not in ("", "null")  # "null" is overwritten where versioning is off
        try:
            return self.url.scheme == "hf" and repo_file(self.url).is_immutable
        except InvalidShardUrl:
            return False

    @property
    def group(self) -> str:
        """The set a shard belongs to when no plan names one: its name up to the last ``/`` of the path."""
        path, _, _ = self.name.partition("?")
        return path[: path.rfind("/") + 1]


def shown(shard: str) -> str:
    """A shard's name as people and logs may see it: without an http query, which may hold what we do not recognise as a secret."""
    if shard.startswith(("http:", "https:")):
        return shard.partition("?")[0]
    return shard


@lru_cache(maxsize=128)
def shown_set(text: str, most: int = 200) -> str:
    """``text`` as everybody may see it: of commands and URLs no header, no password and nothing behind a "?"; at most so long."""
    try:
        parts = masked_parts(text)
    except InvalidShardUrl:
        parts = None
    if parts is not None:
        text = "::".join((unmask(source.url.text()) or source.url.scheme).partition("?")[0] for source, unmask in parts)
    elif "pipe:" in text or "@" in text:
        return "(not a pattern of shard URLs)"
    text = text.partition("?")[0]
    return text if len(text) <= most else text[:most] + "…"


def _travelling(scheme: str, headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Those that go to an origin of this kind: elsewhere they prove nothing, and must not keep readers of the same bytes apart.

    The sidecar signs for s3 (what an S3 client signed was signed for our host, and is another at each request), and opens files itself; gs
    and hf take a request's own ``Authorization``, or nothing.
    """
    if scheme in ("http", "https"):
        return headers
    return headers if scheme in ("gs", "hf") and _has_authorization(headers) else ()


def _has_authorization(headers: tuple[tuple[str, str], ...]) -> bool:
    return any(name.lower() == "authorization" for name, _ in headers)
