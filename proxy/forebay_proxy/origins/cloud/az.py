"""Azure blobs: plain https URLs, whose shared access signature (SAS) is the credential: the part of them that only Azure has. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from forebay_proxy.origins.net.allow_list import place_of

__all__ = ["MARK", "headers_of", "next_step_of"]

# Without it a container open to everybody answers as the service did in 2009: ETags without quotes, no "bytes=N-". A SAS that says another
# version in its `sv` goes on being checked by that one.
VERSION = "2021-12-02"
MARK = ".blob.core."  # in the host of each; a URL without it is not asked about
_HOST = re.compile(r"[a-z0-9-]+\.(?:[a-z0-9]+\.)?blob\.core\.(?:windows\.net|usgovcloudapi\.net|chinacloudapi\.cn)", re.ASCII)
# Only this detail is repeated: another one quotes the signature it was sent.
_DETAIL = re.compile(rb"<AuthenticationErrorDetail>Signature not valid in the specified time frame([^<]{0,200})")
_EXPIRY = re.compile(rb"Expiry \[([A-Za-z0-9:, ]{1,40})\]")


def headers_of(url: str, credential: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """What a request to Azure says beside its credential; nothing for any other host, or where the credential says it itself."""
    if not _HOST.fullmatch(place_of(url).host) or any(name.lower() == "x-ms-version" for name, _ in credential):
        return ()
    return (("x-ms-version", VERSION),)


def next_step_of(code: str, headers: Mapping[str, str], body: bytes) -> str:
    """What to do about a 401, 403 or 404 of Azure's with this error code; "" if it is none, or says too little."""
    if "x-ms-request-id" not in headers:
        return ""
    detail = _DETAIL.search(body)
    if detail is not None:
        end = _EXPIRY.search(detail[1])
        when = f" at {end[1].decode('ascii')}" if end else ""
        return f"the URL's signature (SAS) ended{when} or has not begun: make a new one and start again with the new URLs"
    if code in ("AuthenticationFailed", "AuthorizationFailure"):
        return "make a new SAS with read permission (sp=r) for this blob; the time of this machine must be right too"
    if code in ("NoAuthenticationInformation", "PublicAccessNotPermitted", "ResourceNotFound"):
        return "add a SAS to the URL: https://ACCOUNT.blob.core.windows.net/CONTAINER/BLOB?sv=...&sig=..."
    return ""
