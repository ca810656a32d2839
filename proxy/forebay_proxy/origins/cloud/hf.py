"""hf origins: files of repositories on a Hugging Face hub, resolved once and then read from where the hub sends us.

The hub's answer to a HEAD names the bytes (``X-Linked-Etag``, for large files their sha256; ``X-Repo-Commit``) and redirects to a signed
link of a content delivery network. That link serves all segments of an opening until shortly before it ends: a hub counts requests, and a
shard of 1 GB must not cost it 125. The link's host has ETags of its own, so it is held to those, and the shard to the hub's.

The token goes to the hub and nowhere else. Without one, public repositories are read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

from forebay_proxy.core.errors import ConfigError, InvalidShard, OriginError, OriginLied, ShardError
from forebay_proxy.core.events import Events
from forebay_proxy.core.shard import ByteRange, Credential, Pin, PinKind, Shard, Version
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.origins.errors import refused, report
from forebay_proxy.origins.http import HttpOrigin
from forebay_proxy.origins.http_client import MAX_HOPS
from forebay_proxy.origins.net.allow_list import has_user, place_of
from forebay_proxy.origins.net.guard import Guard, Refused
from forebay_proxy.origins.request import OriginRequest, RedirectCache, RequestTarget, next_hop
from forebay_proxy.origins.response import OriginResponse, content_length, error_of, version_of
from forebay_proxy.wire.urls.hf_url import RepoFile, repo_file
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl

__all__ = ["HfOrigin", "HubToken", "hub_endpoint", "token_path"]


log = logging.getLogger("forebay")

_MOST_BYTES = 16 * 1024
_TOKEN = re.compile(r"[\x21-\x7e]+")  # what a header may hold
_YES = ("1", "on", "yes", "true")


class HubToken:
    """The event loop's only. The file is read in a thread of its own, as homes are on network file systems that may hang."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._given = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN") or ""
        self._path = token_path(environ)
        self._off = environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").lower() in _YES
        self._read: str | None = None  # None: not looked yet
        self._thread: ThreadPoolExecutor | None = None

    def __repr__(self) -> str:
        return f"<HubToken {'none' if self._off or self._read == '' else 'not shown'}>"

    async def now(self) -> str:
        """The token, "" for none."""
        if self._read is None:
            self._read = "" if self._off else _usable(self._given or await self._from_file())
        return self._read

    async def changed(self, rejected: str) -> bool:
        """Read it anew after ``rejected`` was refused; whether there is another one now."""
        self._read = None
        return await self.now() != rejected

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    async def _from_file(self) -> str:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="forebay-token")
        return await asyncio.get_running_loop().run_in_executor(self._thread, _content, self._path)


def token_path(environ: Mapping[str, str]) -> Path:
    """Where the token file is: HF_TOKEN_PATH, else in HF_HOME, else in the cache of the user's home."""
    home = environ.get("HF_HOME") or os.path.join(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.path.expanduser(environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")))


def _content(path: Path) -> str:
    """Blocking. A file that cannot be read is none, and that is said: public repositories go on being read."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        log.warning("hf: the token file cannot be read (%s); only public repositories are", error.strerror)
        return ""


def _usable(text: str) -> str:
    token = text.replace("\r", "").replace("\n", "").strip()
    if token and not _TOKEN.fullmatch(token):
        log.warning("hf: the token holds characters that no token has and is not sent; only public repositories are read")
        return ""
    return token


HUB = "https://huggingface.co"
# Longer than any link is signed for: what ends a link is its own date or a refusal. Openings ask the hub in any case.
_LINK_MOST_S = 3600.0
_STALE = frozenset({400, 401, 403, 404, 410, 412})
_ETAG = re.compile('(?:W/)?"?([^"\\s\ud800-\udfff]{1,256})"?')  # bytes that are no UTF-8 could not be sent back as a condition
_SAID = ("x-linked-etag", "x-linked-size", "x-repo-commit")
_COMMIT = re.compile(r"[0-9a-f]{40,64}", re.ASCII)


class HfOrigin(RequestTarget):
    """All repositories of one hub; an ``Origin``, and the ``RequestTarget`` of its requests."""

    def __init__(
        self,
        http: HttpOrigin,
        *,
        guard: Guard,
        events: Events,
        environ: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``environ``: HF_ENDPOINT, HF_TOKEN and where the token file is."""
        self.origin_client = http.origin_client
        self._guard = guard
        self._events = events
        self._hub = hub_endpoint(environ)
        self._token = HubToken(environ)
        self._redirects = RedirectCache(_LINK_MOST_S, clock)
        self._resolving: dict[tuple[str, Credential], asyncio.Future[OriginRequest]] = {}

    def read(self, shard: Shard, range: ByteRange | None, pin: Pin) -> AbstractAsyncContextManager[OriginBody]:
        """As ``Origin.read``. Without a pin it is an opening, and what a link leads to may be of an older commit: the hub is asked."""
        if not pin:
            self._redirects.forget(shard)
        return self.origin_client.read(self, shard, range, pin)

    async def head(self, shard: Shard) -> Version:
        """What the hub says; the network behind it is not asked."""
        self._redirects.forget(shard)
        with report(self._events, shard):
            told = (await self._resolved(shard)).told
        return told if told is not None else await self.origin_client.head(self, shard)

    async def aclose(self) -> None:
        """The client belongs to the http origin."""
        self._token.close()

    async def prepare(self, shard: Shard) -> OriginRequest:
        return self._redirects.find(shard) or await self._resolved(shard)

    async def again(self, shard: Shard, ask: OriginRequest, answer: OriginResponse) -> OriginRequest | None:
        """When a remembered link is no longer good, the hub is asked once, for the first request that notices."""
        if ask.fresh or answer.status not in _STALE:
            return None
        newer = self._redirects.find(shard)
        if newer is not None and newer.url != ask.url:
            return replace(newer, fresh=True)
        self._redirects.forget(shard)
        return await self._resolved(shard)

    def version(self, shard: Shard, ask: OriginRequest, answer: OriginResponse, length: int | None) -> Version:
        """What the hub said of the file, with the encoding the answer has."""
        here, told = version_of(answer.headers, length), ask.told
        if told is None:
            return here
        if None not in (length, told.length) and length != told.length:
            raise OriginLied(shard.name, f"the hub says the file has {told.length} bytes, where it sends us it has {length}")
        if ask.pin == Pin() and here.pin.kind is PinKind.ETAG:
            self._hold(shard, ask, here.pin)
        return replace(here, identity=told.identity, pin=told.pin, length=length if length is not None else told.length)

    def _hold(self, shard: Shard, ask: OriginRequest, pin: Pin) -> None:
        """From now on this link's host is held to the ETag it gave."""
        link = self._redirects.find(shard)
        if link is not None and link.url == ask.url:
            self._redirects.keep(shard, replace(link, pin=pin))

    async def _resolved(self, shard: Shard) -> OriginRequest:
        """Ask the hub where the bytes are; however many want to know at one time, it is asked once."""
        key = (shard.name, shard.credential)
        while (asked := self._resolving.get(key)) is not None:
            try:
                return await asyncio.shield(asked)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not asked.cancelled() or (task is not None and task.cancelling()):
                    raise  # we are to end, not only the one who asked
        mine = self._resolving[key] = asyncio.get_running_loop().create_future()
        try:
            link = await self._resolve(shard)
            self._redirects.keep(shard, replace(link, fresh=False))
            mine.set_result(link)
            return link
        except ShardError as error:
            mine.set_exception(error)
            mine.exception()  # whether or not somebody else waits, it is known
            raise
        finally:
            del self._resolving[key]
            mine.cancel()  # nothing where it has a result

    async def _resolve(self, shard: Shard) -> OriginRequest:
        file = self._file(shard)
        self._permit(shard)
        if shard.credential.has_authorization:
            return await self._walk(shard, self._ask(file, shard.credential.headers))
        token = await self._token.now()
        try:
            return await self._walk(shard, self._ask(file, _bearer(token)))
        except ShardError as error:
            if error.status not in (401, 403) or not await self._token.changed(token):
                raise
        return await self._walk(shard, self._ask(file, _bearer(await self._token.now())))

    async def _walk(self, shard: Shard, ask: OriginRequest) -> OriginRequest:
        """Follow the hub until it has named the bytes and leads away, or holds them itself."""
        said: dict[str, str] = {}
        for _ in range(MAX_HOPS + 1):
            kind, answer = await self.origin_client.glance(shard, ask)
            if not (answer.is_redirect or answer.status == 200):
                raise error_of(shard.name, answer)
            said = {**_told_by(answer), **said}  # the first word counts: a network's ETag is its own
            if not answer.is_redirect:
                return _link(ask, said)
            here, ask = place_of(ask.url), next_hop(shard, ask, answer.headers["location"], kind)
            if said and place_of(ask.url) != here:
                return _link(ask, said)
        raise OriginError(shard.name, f"the hub redirected more than {MAX_HOPS} times")

    def _ask(self, file: RepoFile, headers: tuple[tuple[str, str], ...]) -> OriginRequest:
        return OriginRequest(self._hub + file.resolve_path(), headers, vouched=True)

    def _file(self, shard: Shard) -> RepoFile:
        try:
            return repo_file(shard.url)
        except InvalidShardUrl as error:
            raise InvalidShard(shard.name, str(error)) from error

    def _permit(self, shard: Shard) -> None:
        try:
            self._guard.check_bucket("hf", shard.url.authority, True, None if self._hub == HUB else place_of(self._hub))
        except Refused as error:
            raise refused(shard.name, error) from error


def hub_endpoint(environ: Mapping[str, str]) -> str:
    """The hub that is asked; HF_ENDPOINT names another one, or a mirror. Raises ``ConfigError``."""
    hub = (environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    if has_user(hub):  # one request cannot prove itself twice
        raise ConfigError("HF_ENDPOINT holds a user or a password", next_step="write the hub's address alone, and the token into HF_TOKEN")
    return hub


def _told_by(answer: OriginResponse) -> dict[str, str]:
    """What one hop says of the file."""
    headers = answer.headers
    said = {name: headers[name] for name in _SAID if name in headers}
    if "etag" in headers and (said or not answer.is_redirect):
        said["etag"] = headers["etag"]
    if "content-length" in headers and not answer.is_redirect:
        said.setdefault("x-linked-size", headers["content-length"])
    return said


def _link(ask: OriginRequest, said: Mapping[str, str]) -> OriginRequest:
    """Where the bytes are, and which they are: the content's hash, which is the ETag of files a hub holds itself, else the commit.

    A mirror may say none of it: then its own headers tell the version, as any other host's.
    """
    link = replace(ask, signed_for_get=True, linked=said.get("x-linked-etag", ""))
    etag, commit = _ETAG.fullmatch(said.get("x-linked-etag") or said.get("etag", "")), said.get("x-repo-commit", "")
    size = content_length({"content-length": said.get("x-linked-size", "")})
    if etag is not None:
        return replace(link, pin=Pin(), told=Version(f"hf:{etag[1]}", Pin(PinKind.ETAG, f'"{etag[1]}"'), size))
    if _COMMIT.fullmatch(commit):
        return replace(link, pin=Pin(), told=Version(f"hf:@{commit}", Pin(PinKind.ETAG, f'"{commit}"'), size))
    return link


def _bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("Authorization", f"Bearer {token}"),) if token else ()
