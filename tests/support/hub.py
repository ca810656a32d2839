"""A Hugging Face hub and the network behind it, as far as downloads go: two small HTTP servers on two ports.

    async with Hub() as hub:
        hub.put("datasets/org/name", "a.tar", ramp(1000))
        ... {"HF_ENDPOINT": hub.base} ... hub.requests, hub.cdn.requests, hub.cdn.end_links()

Large files: 302 with X-Linked-Etag (the sha256), X-Linked-Size, X-Repo-Commit, to a signed link that ends. Small ones: a relative 307 to
where the hub holds them. ``huggingface_hub`` itself downloads from it, which a test does.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qs, quote, unquote

from aiohttp import web

__all__ = ["Asked", "Cdn", "Hub", "Listening", "ranged"]


@dataclass(frozen=True)
class Asked:
    """One request; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


@dataclass(frozen=True)
class _File:
    data: bytes
    large: bool

    @property
    def etag(self) -> str:
        if self.large:
            return hashlib.sha256(self.data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()


class Listening:
    """A server on a port the kernel picks, for the length of an ``async with``."""

    port: int

    async def __aenter__(self) -> Self:
        self._runner = web.ServerRunner(web.Server(self._answer), shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = int(self._runner.addresses[0][1])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        raise NotImplementedError


def ranged(request: web.BaseRequest, data: bytes, headers: dict[str, str]) -> web.Response:
    """``data`` or the range asked for, held to If-Match."""
    match = request.headers.get("If-Match")
    if match is not None and match != headers.get("ETag"):
        return web.Response(status=412)
    text = request.headers.get("Range")
    if text is None:
        return web.Response(body=data, headers=headers)
    first, _, last = text.removeprefix("bytes=").partition("-")
    begin, end = int(first), min(int(last) + 1 if last else len(data), len(data))
    if begin >= len(data):
        return web.Response(status=416, headers={"Content-Range": f"bytes */{len(data)}"})
    said = {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}
    return web.Response(status=206, body=data[begin:end], headers=said)


@dataclass
class Cdn(Listening):
    """Serves by content hash whoever has a link that is signed and not over. Its ETags are its own."""

    requests: list[Asked] = field(default_factory=list)
    name: str = "cdn"
    good_for_s: float = 3600.0
    missing: int = 0  # bytes at the end of every file

    def __post_init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self.end_links()

    def link(self, file: _File) -> str:
        self._files[file.etag] = file.data
        end = int(time.time() + self.good_for_s)
        path = f"/repos/{file.etag}"
        return f"{self.base}{path}?response-content-disposition=inline&Expires={end}&Signature={self._sign(path, end)}&Key-Pair-Id=K1"

    def end_links(self) -> None:
        """Every link handed out so far is over."""
        self._secret = secrets.token_bytes(16)

    def etag_of(self, file_etag: str) -> str:
        return f'"{self.name}-{file_etag[:16]}"'

    def _sign(self, path: str, end: int) -> str:
        return hmac.new(self._secret, f"{path}{end}".encode(), hashlib.sha256).hexdigest()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        self.requests.append(Asked(request.method, request.path, {name.lower(): value for name, value in request.headers.items()}))
        said = {name: values[0] for name, values in parse_qs(request.query_string).items()}
        end = int(said.get("Expires", "0"))
        if not hmac.compare_digest(said.get("Signature", ""), self._sign(request.path, end)) or end <= time.time():
            body = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
            return web.Response(status=403, body=body, content_type="application/xml")
        key = request.path.rpartition("/")[2]
        data = self._files[key]
        return ranged(request, data[: len(data) - self.missing], {"ETag": self.etag_of(key), "Content-Type": "application/x-tar"})


@dataclass
class Hub(Listening):
    """Repositories by ``datasets/org/name``, ``spaces/org/name`` or ``org/name``. ``tokens`` may read ``private`` ones."""

    tokens: set[str] = field(default_factory=lambda: {"hf_good"})
    private: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    requests: list[Asked] = field(default_factory=list)
    limited: int = 0  # so many coming requests are one too many
    etags: bool = True  # says which content it is; else only which commit

    async def __aenter__(self) -> Self:
        self._repos: dict[str, dict[str, dict[str, _File]]] = {}
        self._commits: dict[tuple[str, str], str] = {}
        self.cdn = await Cdn().__aenter__()
        return await super().__aenter__()

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        await self.cdn.__aexit__()

    def put(self, repo: str, path: str, data: bytes, *, large: bool = True, revision: str = "main") -> str:
        """A new commit; its hash."""
        files = dict(self._repos.setdefault(repo, {}).get(revision, {}))
        files[path] = _File(data, large)
        commit = hashlib.sha1(repr(sorted((name, file.etag) for name, file in files.items())).encode()).hexdigest()
        for known in (revision, commit):
            self._repos[repo][known] = files
            self._commits[repo, known] = commit
        return commit

    def asked(self, path: str) -> list[Asked]:
        return [request for request in self.requests if request.path.endswith(path)]

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        self.requests.append(Asked(request.method, request.path, {name.lower(): value for name, value in request.headers.items()}))
        if self.limited > 0:
            self.limited -= 1
            limits = {"RateLimit": '"resolvers";r=0;t=7', "RateLimit-Policy": '"fixed window";"resolvers";q=3000;w=300'}
            return web.Response(status=429, headers=limits)
        raw = request.rel_url.raw_path
        cached = raw.startswith("/api/resolve-cache/")
        repo, revision, path = self._cached(raw) if cached else self._named(raw)
        refusal = self._refusal(request, repo, revision, path)
        if refusal is not None:
            return refusal
        return self._file(request, repo, revision, path, cached=cached)

    def _named(self, path: str) -> tuple[str, str, str]:
        repo, _, rest = path.strip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        return repo, unquote(revision), unquote(name)

    def _cached(self, path: str) -> tuple[str, str, str]:
        kind, org, name, commit, file = path.removeprefix("/api/resolve-cache/").split("/", 4)
        return f"{'' if kind == 'models' else kind + '/'}{org}/{name}", commit, unquote(file)

    def _refusal(self, request: web.BaseRequest, repo: str, revision: str, path: str) -> web.Response | None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if given and given not in self.tokens:
            return _error(401, "", "Invalid credentials in Authorization header")
        if repo not in self._repos or (repo in self.private and not given):
            return _error(404 if given else 401, "RepoNotFound", "Repository not found")
        if repo in self.gated:
            return _error(403 if given else 401, "GatedRepo", f"Access to {repo} is restricted")
        if revision not in self._repos[repo]:
            return _error(404, "RevisionNotFound", "Invalid rev id")
        if path not in self._repos[repo][revision]:
            return _error(404, "EntryNotFound", "Entry not found")
        return None

    def _file(self, request: web.BaseRequest, repo: str, revision: str, path: str, *, cached: bool) -> web.Response:
        file, commit = self._repos[repo][revision][path], self._commits[repo, revision]
        said = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        etag = {"ETag": f'"{file.etag}"'} if self.etags else {}
        if cached:
            return ranged(request, file.data, {**said, **etag, "Content-Type": "text/plain"})
        if not file.large:
            kind, _, rest = repo.partition("/") if repo.count("/") == 2 else ("models", "", repo)
            return web.Response(status=307, headers={**said, "Location": f"/api/resolve-cache/{kind}/{rest}/{commit}/{quote(path)}"})
        linked = {"X-Linked-Etag": f'"{file.etag}"'} if self.etags else {}
        headers = {**said, **linked, "X-Linked-Size": str(len(file.data)), "Location": self.cdn.link(file)}
        return web.Response(status=302, text="Found. Redirecting", headers=headers)


def _error(status: int, code: str, message: str) -> web.Response:
    headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
    return web.Response(status=status, text=message, headers=headers)
