"""Google Cloud Storage's XML API as far as reading goes, and the token service beside it: one small HTTP server.

Objects stored with ``Content-Encoding: gzip`` are unpacked for whoever does not accept gzip, as the service does it: no length, no ranges,
a warning. Tokens are good until ``end_tokens``.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from support.hub import Asked, Listening, ranged

__all__ = ["Gcs", "account_file"]


@dataclass(frozen=True)
class _Object:
    data: bytes
    generation: int
    encoding: str
    public: bool


@dataclass
class Gcs(Listening):
    """Objects by ``bucket/key``."""

    requests: list[Asked] = field(default_factory=list)
    expires_in_s: int = 3600
    token_status: int = 200
    redirect: str = ""  # where every object is sent to, with 307

    def __post_init__(self) -> None:
        self._objects: dict[str, _Object] = {}
        self._tokens: list[str] = []
        self._good: set[str] = set()
        self._generation = 1_700_000_000_000_000

    @property
    def reads(self) -> list[Asked]:
        """Requests for objects."""
        return [request for request in self.requests if request.path != "/token"]

    @property
    def token_requests(self) -> int:
        return sum(request.path == "/token" for request in self.requests)

    def put(self, name: str, data: bytes, *, encoding: str = "", public: bool = False) -> None:
        """``data`` as it is stored."""
        self._generation += 1
        self._objects[name] = _Object(data, self._generation, encoding, public)

    def end_tokens(self) -> None:
        """Every token handed out so far is refused from now on."""
        self._good.clear()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append(Asked(request.method, request.rel_url.raw_path, headers))
        if request.path == "/token":
            return self._token()
        if self.redirect:
            return web.Response(status=307, headers={"Location": self.redirect + request.rel_url.raw_path})
        stored = self._objects.get(unquote(request.rel_url.raw_path[1:]))
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if given and given not in self._good:
            return _error(401, "AuthenticationRequired", "Authentication required.")
        if not given and not (stored and stored.public):
            return _error(403, "AccessDenied", "Anonymous caller does not have storage.objects.get access to the object.")
        if stored is None:
            return _error(404, "NoSuchKey", "The specified key does not exist.")
        return await _object(request, stored)

    def _token(self) -> web.Response:
        if self.token_status != 200:
            body = json.dumps({"error": "invalid_grant", "error_description": "Token has been expired or revoked."})
            return web.Response(status=self.token_status, text=body, content_type="application/json")
        token = f"ya29.canary-{len(self._tokens)}"
        self._tokens.append(token)
        self._good.add(token)
        body = json.dumps({"access_token": token, "expires_in": self.expires_in_s, "token_type": "Bearer"})
        return web.Response(text=body, content_type="application/json")


async def _object(request: web.BaseRequest, stored: _Object) -> web.StreamResponse:
    md5 = hashlib.md5(stored.data)
    headers = {
        "ETag": f'"{md5.hexdigest()}"',
        "x-goog-generation": str(stored.generation),
        "x-goog-metageneration": "1",
        "x-goog-hash": f"md5={base64.b64encode(md5.digest()).decode()}",
        "x-goog-stored-content-encoding": stored.encoding or "identity",
        "x-goog-stored-content-length": str(len(stored.data)),
        "Accept-Ranges": "bytes",
        "Content-Type": "application/x-tar",
    }
    if not stored.encoding:
        return ranged(request, stored.data, headers)
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        return ranged(request, stored.data, {**headers, "Content-Encoding": stored.encoding})
    headers |= {"Warning": "214 UploadServer gunzipped", "ETag": f'W/"{md5.hexdigest()}"'}
    response = web.StreamResponse(headers=headers)
    response.enable_chunked_encoding()
    await response.prepare(request)
    if request.method != "HEAD":
        await response.write(gzip.decompress(stored.data))
    return response


def _error(status: int, code: str, message: str) -> web.Response:
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return web.Response(status=status, text=body, content_type="application/xml")


def account_file(path: Path, token_uri: str) -> Path:
    """A service account's key, as GOOGLE_APPLICATION_CREDENTIALS names one; its tokens come from ``token_uri``."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    account = {
        "type": "service_account", "project_id": "p", "private_key_id": "k", "private_key": pem.decode(), "client_id": "1",
        "client_email": "forebay@p.iam.gserviceaccount.com", "token_uri": token_uri,
    }  # fmt: skip
    path.write_text(json.dumps(account))
    return path
