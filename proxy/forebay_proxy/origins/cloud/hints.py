"""What a person can do about a refusal, from the service's own words. Pure; no text repeats a secret."""

from __future__ import annotations

from collections.abc import Mapping

from forebay_proxy.origins.cloud import az

__all__ = ["next_step_of"]

_ANY = "check the credentials this shard is read with"
_GS = (
    "check that the sidecar's Google account may read the object; where there is none, run 'gcloud auth application-default login' "
    "or set GOOGLE_APPLICATION_CREDENTIALS for it"
)


def next_step_of(shard: str, code: str, headers: Mapping[str, str], body: bytes) -> str:
    """The next step after a 401 or 403 to ``shard`` (a name) with this error code; headers in lower case."""
    if shard.startswith("s3://"):
        return _s3(shard)
    if shard.startswith("gs://"):
        return _GS
    if shard.startswith("hf://"):
        return _hf(code)
    return az.next_step_of(code, headers, body) or (_ended(body) or _ANY)


def _s3(shard: str) -> str:
    if "unsigned=1" in shard.rpartition("?")[2]:
        return "unsigned=1 asks without credentials: leave it out to use the sidecar's"
    return "check what the sidecar's AWS credentials may read; a public bucket may want ?unsigned=1"


def _hf(code: str) -> str:
    if code == "GatedRepo":
        return "accept the repository's conditions on its page, with the account whose token the sidecar has (HF_TOKEN)"
    return "check the repository's name; a private or gated one needs a token: HF_TOKEN, or 'hf auth login', for the sidecar"


def _ended(body: bytes) -> str:
    """A presigned URL of S3 or GCS that is over."""
    over = b"Request has expired" in body or b"<Code>ExpiredToken</Code>" in body
    return "the URL's signature has ended: sign a new one and start again with the new URLs" if over else ""
