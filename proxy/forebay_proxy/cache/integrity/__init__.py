"""Checks bytes: segments against their stored checksums, whole shards against the digests of their origins."""
