"""A name for immutable bytes: canonical URL, version (identity and pin), credential, store key. Pure.

A shard's *name* is its canonical origin URL: scheme and host in lower case, default port, fragment and userinfo dropped, path and query as
received, less the parameters that only prove who asks (signatures). Those parameters, and the request headers that travel, are the
*credential*. A *version* has two halves: the *identity* makes the store key; the *pin* is what the answering host can compare.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from enum import Enum

from forebay_proxy.wire.hf_url import repo_file
from forebay_proxy.wire.urls import InvalidShardUrl, ShardUrl

__all__ = ["ByteRange", "Credential", "Pin", "PinKind", "Shard", "Version", "store_key"]

# Query parameters that sign a URL and say nothing about which bytes it names.
_SIGNATURE_PREFIXES = ("x-amz-", "x-goog-")
_SIGNATURE_NAMES = frozenset({
    "awsaccesskeyid", "signature", "expires",  # S3 signature v2 and CloudFront
    "policy", "key-pair-id",  # CloudFront
    "googleaccessid",  # GCS signature v2
})  # fmt: skip
# Azure SAS: only where "sig" is present, because these names are short enough to mean something else elsewhere.
_AZURE_SAS_NAMES = frozenset({
    "sv", "sr", "st", "se", "sp", "sig", "spr", "sip", "si", "sdd", "ss", "srt", "skoid", "sktid", "skt", "ske", "sks", "skv", "saoid",
    "suoid", "scid", "ses", "rscc", "rscd", "rsce", "rscl", "rsct",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class ByteRange:
    """``bytes=first-last``, both inclusive as in RFC 9110; ``last=None`` means to the end."""

    first: int
    last: int | None = None

    def header(self) -> str:
        return f"bytes={self.first}-{'' if self.last is None else self.last}"


@dataclass(frozen=True, slots=True)
class Credential:
    """What a request carries to prove itself: headers and signature parameters. Never printed, never stored; only HMACs of it are."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    signature: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.headers or self.signature)

    def mac(self, key: bytes) -> str:
        """HMAC-SHA256 (RFC 2104) of the credential as 32 hex digits; "" for no credential."""
        if not self:
            return ""
        # With its length each value has one end only, whatever it holds.
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
    Content-Encoding the origin insisted on, "" for identity.
    """

    identity: str
    pin: Pin
    length: int | None
    encoding: str = ""
    content_type: str = ""

    def etag(self, key: str) -> str:
        """The ETag our own answers carry: the origin's strong one, else one made from the store key."""
        if self.pin.kind is PinKind.ETAG:
            return self.pin.value
        return f'"fb-{key[:32]}"'


def store_key(name: str, identity: str) -> str:
    """64 hex digits that name the stored file and the index row of one version: SHA-256 over name and identity."""
    return hashlib.sha256(f"{name}\n{identity}".encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, slots=True)
class Shard:
    """What a reader asked for: a name for immutable bytes, and the credential that came with the asking."""

    url: ShardUrl = field(repr=False)  # as asked, signature included: a secret
    name: str
    credential: Credential = Credential()
    via: str = field(default="", compare=False)  # which sidecars the asking has passed (echo.py); says nothing about the bytes

    @classmethod
    def of(cls, url: ShardUrl, headers: tuple[tuple[str, str], ...] = ()) -> Shard:
        """Split ``url`` into the name and the credential in it; ``headers`` are the request headers that travel."""
        if url.scheme not in ("http", "https"):
            return cls(url, url.text(), Credential(headers))
        kept, signature = _split_query(url.query)
        name = ShardUrl(url.scheme, url.authority, url.path, kept).text()
        return cls(url, name, Credential(headers, signature))

    @property
    def origin(self) -> str:
        """Scheme and host, as metrics and the limiter know it."""
        return f"{self.url.scheme}://{self.url.authority}"

    @property
    def is_immutable(self) -> bool:
        """Whether the name itself says which version it means (an S3 version id, a commit of a hub): then nobody need be asked again."""
        if self.url.scheme == "s3":
            return "versionId" in self.url.options()
        try:
            return self.url.scheme == "hf" and repo_file(self.url).is_immutable
        except InvalidShardUrl:
            return False

    @property
    def group(self) -> str:
        """The set a shard belongs to when no plan names one: its name up to the last ``/`` of the path."""
        path, _, _ = self.name.partition("?")
        return path[: path.rfind("/") + 1]


def _split_query(query: str) -> tuple[str, str]:
    """(what names the bytes, what proves the asker); order and bytes of both halves as received."""
    if not query:
        return "", ""
    parts = query.split("&")
    azure = any(part.lower().startswith("sig=") for part in parts)
    kept: list[str] = []
    signature: list[str] = []
    for part in parts:
        name = part.partition("=")[0].lower()
        signs = name.startswith(_SIGNATURE_PREFIXES) or name in _SIGNATURE_NAMES or (azure and name in _AZURE_SAS_NAMES)
        (signature if signs else kept).append(part)
    return "&".join(kept), "&".join(signature)
