"""Shard URLs as both sides of the wire know them: the parts, the spellings, and what people write. Pure, runs nothing."""

from __future__ import annotations

from forebay_proxy.wire.gopen import gopen_rewrite
from forebay_proxy.wire.quoting import MAX_URL_BYTES, InvalidShardUrl
from forebay_proxy.wire.rewrite import rewrite_pattern
from forebay_proxy.wire.s3_options import S3_OPTIONS
from forebay_proxy.wire.shard_url import SCHEMES, ShardUrl, parse_origin_url, parse_proxy_target, proxy_url
from forebay_proxy.wire.sources import Source, parse_source

__all__ = [
    "MAX_URL_BYTES", "S3_OPTIONS", "SCHEMES", "InvalidShardUrl", "ShardUrl", "Source", "gopen_rewrite", "parse_origin_url",
    "parse_proxy_target", "parse_source", "proxy_url", "rewrite_pattern",
]  # fmt: skip
