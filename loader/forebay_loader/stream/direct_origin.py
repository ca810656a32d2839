"""An http(s) origin, asked directly without the sidecar, by the standard library alone.

Redirects are followed. Credentials go only to the host they were written for. System proxies apply as for curl, except for loopback.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import IO, Any, Optional
from urllib.parse import urlsplit

from forebay_loader.base.activity import ORIGIN
from forebay_loader.base.errors import ShardChanged, ShardReadError
from forebay_loader.base.timeouts import Limits
from forebay_loader.stream.shard_request import is_retryable, retry_after, safe_headers, shown
from forebay_loader.stream.sources import NotTaken, place, resume_headers
from forebay_loader.transport.body import Progress, ShardBody, Unanswered
from forebay_proxy.wire.commands.sources import Source

__all__ = ["DirectSource"]

AGENT = "forebay-loader"
_CARRIED = frozenset({"range", "if-match", "accept-encoding", "user-agent"})  # headers that may follow a redirect to another host

_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})  # final answers of the resolver; EAI_AGAIN may pass


class DirectSource:
    """The origin itself. It is asked by Range and If-Match from the byte where the sidecar was lost.

    If its ETag differs from the sidecar's, the shard is read from byte 0 and compared with what was delivered.
    """

    name = "origin"
    cause = ORIGIN

    def __init__(self, source: Source, limits: Limits) -> None:
        self._url = source.url.text()
        self._headers = [("Accept-Encoding", "identity"), ("User-Agent", AGENT), *safe_headers(source)]
        self._shown = shown(source)
        self._limits = limits
        self._tar = source.url.path.endswith(".tar")
        self._opener: Optional[urllib.request.OpenerDirector] = None  # built when needed: reading the CA certificates takes 20 ms
        self._distrusted = False  # it answered a range without an ETag: only a comparison from byte 0 shows the version

    def open(self, progress: Progress) -> Any:
        request = urllib.request.Request(self._url)  # noqa: S310  # http and https alone have handlers
        for name, value in [*self._headers, *([] if self._distrusted else resume_headers_of_origin(progress))]:
            request.add_header(name, value)
        try:
            response = self._send(request)
        except ShardChanged as error:
            if error.status != 412 or not progress.pinned:
                raise
            progress.etag = ""  # another server of the origin may have another ETag for the same bytes: start at byte 0 and compare
            return self.open(progress)
        if response.status == 206 and not response.headers.get("ETag"):
            response.close()
            self._distrusted = True
            raise Unanswered("the origin answers ranges without an ETag", reached=True, retry_after_s=0.0)
        body = ShardBody(response, lambda _: response.close(), tar=self._tar)
        return place(body, response.status, lambda name: str(response.headers.get(name, "")), progress, self._shown)

    def turns(self) -> bool:
        return False  # an origin that sends nothing counts as failing

    def _send(self, request: urllib.request.Request) -> HTTPResponse:
        if self._opener is None:
            self._opener = _build_opener(self._url)
        try:
            response: HTTPResponse = self._opener.open(request, timeout=self._limits.direct_silence_s)
        except urllib.error.HTTPError as error:
            raise self._refused(error) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLError):  # curl may know the certificate, or be told to ignore it
                raise NotTaken(f"TLS with the origin failed ({error.reason.reason})") from error
            if isinstance(error.reason, socket.gaierror) and error.reason.errno in _NO_SUCH_NAME:
                raise ShardReadError(
                    f"shard {self._shown}: its origin's host name does not exist; check the host name in the URL"
                ) from error
            raise Unanswered(f"no connection to the origin ({type(error.reason).__name__})") from error
        except (OSError, HTTPException) as error:
            raise Unanswered(f"the origin broke off ({type(error).__name__})", silent=isinstance(error, socket.timeout)) from error
        except ValueError as error:
            raise NotTaken(f"the URL or a header cannot be sent ({type(error).__name__})") from error
        return response

    def _refused(self, error: urllib.error.HTTPError) -> Exception:
        status, wish = error.code, retry_after(error.headers.get("Retry-After", "") or "")
        error.close()
        if is_retryable(status):
            return Unanswered(f"the origin answered {status}", reached=True, retry_after_s=wish)
        if status in (412, 416):
            return ShardChanged(f"shard {self._shown}: was replaced on its origin while it was read (HTTP {status})", status)
        return ShardReadError(f"shard {self._shown}: its origin answered {status}", status)


def resume_headers_of_origin(progress: Progress) -> list[tuple[str, str]]:
    """As for the sidecar, but without an ETag that the sidecar made up: the origin does not know it."""
    return [] if progress.etag.startswith('"fb-') else resume_headers(progress)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects. Credentials are sent only to the host they were written for."""

    def __init__(self, url: str) -> None:
        self._home = _place_of(url)

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Optional[urllib.request.Request]:
        following = super().redirect_request(req, fp, 307 if code == 308 else code, msg, headers, newurl)
        if following is not None and _place_of(newurl) != self._home:
            for name in [name for name in following.headers if name.lower() not in _CARRIED]:
                following.remove_header(name)
        return following

    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302  # Python 3.9 and 3.10 do not know it


def _build_opener(url: str) -> urllib.request.OpenerDirector:
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler({} if _is_loopback(url) else None),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        _Redirects(url),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _place_of(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.lower()


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
