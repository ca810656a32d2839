"""Whether two environments lead to the same data: an HMAC over credentials, endpoints and upstream proxies. Pure.

A sidecar reads shards with *its* environment. A job whose environment differs must not be served by that sidecar: the job would get shards
that others may read, or be refused shards that it may read. Values are only ever mixed into the HMAC, so nothing that is stored or shown
leads back to them.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

__all__ = ["KEY_BYTES", "fingerprint", "relevant"]

KEY_BYTES = 32

_PREFIXES = ("AWS_", "HF_", "HUGGING_FACE_", "CLOUDSDK_")
_NAMES = frozenset({
    "GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "BOTO_CONFIG", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
})  # fmt: skip
_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy", "no_proxy"})

# Variables of how tools print and report: no such variable changes which bytes are read.
_COSMETIC = frozenset({
    "AWS_PAGER", "AWS_CLI_AUTO_PROMPT", "AWS_DEFAULT_OUTPUT", "AWS_EXECUTION_ENV", "AWS_SDK_UA_APP_ID",
    "HF_HUB_DISABLE_PROGRESS_BARS", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_VERBOSITY", "HF_HUB_ENABLE_HF_TRANSFER", "HF_DATASETS_VERBOSITY",
})  # fmt: skip

# ``forebay run`` adds these for its command; a run inside a run must still find the same sidecar.
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def relevant(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that decide what data is reached, and how. Empty ones count as unset; proxy names are case-blind, lower case wins."""
    found: dict[str, str] = {}
    for name, value in sorted(environ.items()):  # upper case sorts first, so lower case overrides it, as in curl and aiohttp
        if name.lower() in _PROXIES:
            found[name.lower()] = _no_proxy(value) if name.lower() == "no_proxy" else value
        elif (name.startswith(_PREFIXES) or name in _NAMES) and name not in _COSMETIC:
            found[name] = value
    return {name: value for name, value in found.items() if value}


def fingerprint(environ: Mapping[str, str], key: bytes) -> str:
    """16 hex digits: HMAC-SHA256 with ``key`` (32 random bytes) over names and values. Not comparable between keys."""
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for name, value in sorted(relevant(environ).items()):
        for part in (name, value):
            encoded = part.encode("utf-8", "surrogateescape")
            mac.update(len(encoded).to_bytes(8, "big") + encoded)  # lengths, or ("ab", "c") would equal ("a", "bc")
    return mac.hexdigest()[:16]


def _no_proxy(value: str) -> str:
    hosts = {host.strip().lower() for host in value.split(",")} - _LOOPBACK - {""}
    return ",".join(sorted(hosts))
