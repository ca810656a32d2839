"""Where the shared tier is: ``s3://bucket[/prefix][?endpoint=…&profile=…&region=…]``."""

from __future__ import annotations

from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, object_url, parse_origin_url

__all__ = ["SharedPlace"]

_OPTIONS = frozenset({"endpoint", "profile", "region"})


class SharedPlace:
    """A prefix of a bucket. Raises ``ValueError`` for what names none; it repeats nothing, as there may be a password in it."""

    def __init__(self, text: str) -> None:
        place, mark, query = text.partition("?")
        try:
            url = parse_origin_url(f"{place.rstrip('/')}/x{mark}{query}")
            self.options = url.options()
            self.bucket, self.prefix = url.authority, url.key().removesuffix("x")
            self.shard("x")
        except InvalidShardUrl as error:
            raise ValueError(f"that is no place in an S3 store ({error}); one is s3://cluster-cache/forebay") from None
        if url.scheme != "s3" or set(self.options) - _OPTIONS:
            raise ValueError("that is no place in an S3 store; one is s3://bucket/prefix, with ?endpoint=…&profile=…&region=… at most")

    def __repr__(self) -> str:
        return f"<SharedPlace {self}>"

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def allowed(self) -> tuple[str, ...]:
        """What of it is reached without another word of the operator's, as ``--allow-origin`` would name it: this bucket, on this endpoint,
        be that on this machine."""
        endpoint = self.options.get("endpoint", "")
        scheme, _, rest = endpoint.partition("://")
        return (f"s3://{self.bucket}", *([f"{scheme}://{rest.partition('/')[0]}"] if endpoint else []))

    def key(self, name: str) -> str:
        return self.prefix + name

    def shard(self, name: str) -> Shard:
        """An object of it, as the S3 origin reads it."""
        return Shard.of(object_url("s3", self.bucket, self.key(name), self.options))

    def holds(self, shard: Shard) -> bool:
        """Whether ``shard`` is one of its objects."""
        return shard.url.scheme == "s3" and shard.url.authority == self.bucket and shard.url.key().startswith(self.prefix)
