"""Talking to a sidecar's ``/v1`` API from a command line: blocking, over TCP or a unix socket; and which sidecar a verb talks to.

``http.client`` on purpose: it knows no proxy variables, so a corporate ``http_proxy`` never swallows a request for 127.0.0.1.
"""

from __future__ import annotations

import http.client
import json
import os
import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from forebay_proxy.cli.output import notice
from forebay_proxy.config.settings import load
from forebay_proxy.config.settings_file import find_file
from forebay_proxy.core.errors import ConfigError, ForebayError
from forebay_proxy.core.shard import Shard
from forebay_proxy.node.runfile import RunDirectory, RunFile
from forebay_proxy.wire.protocol.keepalive import KeepAlive, cause, connection_to
from forebay_proxy.wire.protocol.runfile import is_stopped
from forebay_proxy.wire.tar.sample_index import faults_text
from forebay_proxy.wire.urls.shard_url import parse_proxy_target

__all__ = ["KeepAlive", "SidecarClient", "SidecarHung", "SidecarRefused", "SidecarUnreachable", "locate", "named_address", "token_of"]


Table = dict[str, Any]

_TIMEOUT_S = 5.0  # a live sidecar answers in milliseconds; one that needs longer is no help to a person either
_CHUNK_BYTES = 1 << 20
_STREAM_TIMEOUT_S = 60.0  # a warm-up reports every second; a minute of silence means it is gone
_TELL_S = 5.0  # a question about a shard waits for the shard's origin: after so long a person is told what it answers
_ORIGIN_S = 15.0  # and after so long the verb ends with that; readers have five minutes
_EVICT_TIMEOUT_S = 3600.0  # it says nothing before its end, and a million files take their time


class SidecarUnreachable(ForebayError):
    """No process answers at the sidecar's address, or the one that does speaks no HTTP."""

    title = "Sidecar unreachable"


class SidecarHung(SidecarUnreachable):
    """The process of the sidecar at that address runs, and does not answer."""

    title = "Sidecar does not answer"


class SidecarRefused(ForebayError):
    """The sidecar answered with an error; the message is its own. ``status`` is the HTTP status."""

    title = "Sidecar refused"

    def __init__(self, message: str, *, next_step: str = "", status: int = 500) -> None:
        super().__init__(message, next_step=next_step)
        self.status = status


class SidecarClient:
    """A sidecar at ``address``: ``http://host:port`` or ``unix:/path``. Raises ``ConfigError`` for any other spelling."""

    def __init__(self, address: str, *, token: str = "") -> None:
        self.address = address.rstrip("/")
        self._headers = {"Forebay-Token": token} if token else {}
        try:
            connection_to(self.address, 0.0)
        except ValueError as error:
            raise ConfigError(str(error), next_step="check --url and FOREBAY_URL") from error

    def __repr__(self) -> str:
        return f"<SidecarClient {self.address}>"

    def ready(self, timeout_s: float = _TIMEOUT_S) -> None:
        """Return if the sidecar serves; raise ``SidecarUnreachable`` or ``SidecarRefused`` (it starts, or drains) if not."""
        self._once("GET", "/readyz", timeout_s=timeout_s)

    def status(self, timeout_s: float = _TIMEOUT_S) -> Table:
        """``GET /v1/status``."""
        return _table(self._once("GET", "/v1/status", timeout_s=timeout_s))

    def shards(self, name: str = "") -> list[Table]:
        """``GET /v1/shards``: one entry a stored version of a shard; of the shard ``name`` alone, if one is named."""
        path = f"/v1/shards?shard={quote(name, safe='')}" if name else "/v1/shards"
        return list(_table(self._once("GET", path, timeout_s=_STREAM_TIMEOUT_S))["shards"])

    def evict(self, selection: Mapping[str, Any]) -> Table:
        """``POST /v1/evict`` with ``{"shards": [...]}`` or ``{"all": true}``; bytes freed, and bytes that stay as they are leased."""
        return _table(self._once("POST", "/v1/evict", json.dumps(selection).encode(), timeout_s=_EVICT_TIMEOUT_S))

    def allow(self, origins: Sequence[str]) -> None:
        """``POST /v1/allow``: the sidecar may go to these origins too, in the words of ``--allow-origin``. Raises ``SidecarRefused``."""
        self._once("POST", "/v1/allow", json.dumps({"origins": list(origins)}).encode(), timeout_s=_TIMEOUT_S)

    def warm(self, content_type: str, body: bytes, headers: tuple[tuple[str, str], ...] = (), query: str = "") -> Iterator[Table]:
        """``POST /v1/warm``; yields its events as they come. ``headers`` travel to the shards' origin."""
        return self._events(
            "/v1/warm" + (f"?{query}" if query else ""), body, {"Content-Type": content_type, **dict(headers)}, done="warmed"
        )

    def verify(self, selection: Mapping[str, Any]) -> Iterator[Table]:
        """``POST /v1/verify`` with a selection as of ``evict``; yields its events as they come."""
        return self._events("/v1/verify", json.dumps(selection).encode(), {"Content-Type": "application/json"}, done="verified")

    def samples(self, target: str, headers: tuple[tuple[str, str], ...] = ()) -> tuple[int, str, str]:
        """How many samples the shard at ``target`` ("/s3/bucket/key") has, its ETag, and what is amiss with them ("": nothing).

        Raises ``SidecarRefused``: 404 it has no index, 409 not yet.
        """
        asked = {"If-None-Match": "*", **dict(headers)}  # the index itself is not wanted
        with self._answer("GET", f"/v1/index{target}", None, _ORIGIN_S, asked, target) as answer:
            etag = answer.headers.get("ETag", "")
            count, *faults = (answer.headers.get(f"Forebay-{name}", "") for name in ("Samples", "Keys-Again", "Links-Left-Out"))
        again, left_out = (int(text) if text.isascii() and text.isdigit() else 0 for text in faults)
        if not (count.isascii() and count.isdigit()):
            raise SidecarUnreachable("what answers there counts no samples", next_step="is it a Forebay of an older version?")
        return int(count), etag, faults_text(again, left_out)

    def read(self, target: str, headers: Mapping[str, str], most: int) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and up to ``most`` first bytes of what ``target`` ("/s3/bucket/key") gives. Raises ``SidecarRefused``."""
        with self._answer("GET", target, None, _ORIGIN_S, headers, target) as answer:
            return answer.status, dict(answer.headers.items()), answer.read(most)

    def chunks(self, target: str, headers: Mapping[str, str]) -> Iterator[bytes]:
        """The body of what ``target`` gives, as it comes; shorter than promised where it is cut. Raises ``SidecarRefused``."""
        with self._answer("GET", target, None, _STREAM_TIMEOUT_S, headers, target) as answer:
            while chunk := answer.read1(_CHUNK_BYTES):
                yield chunk

    def announce(self, reader: str, content_type: str, body: bytes, headers: tuple[tuple[str, str], ...] = (), query: str = "") -> None:
        """``PUT /v1/plans/READER``: what it opens next. Raises ``SidecarRefused``."""
        path = f"/v1/plans/{reader}" + (f"?{query}" if query else "")
        with self._answer("PUT", path, body, _TIMEOUT_S, {"Content-Type": content_type, **dict(headers)}) as answer:
            answer.read()

    def _events(self, path: str, body: bytes, headers: Mapping[str, str], *, done: str) -> Iterator[Table]:
        """The lines of an answer. Raises ``SidecarUnreachable`` where they stop before the event "end": a cut looks like one to us."""
        event: Table = {}
        with self._answer("POST", path, body, _STREAM_TIMEOUT_S, headers) as answer:
            for line in iter(answer.readline, b""):
                if line.strip():
                    event = _table(line)
                    yield event
        if event.get("event") != "end":
            raise SidecarUnreachable(f"the sidecar ended before it had {done} everything", next_step="run it again")

    def hold(self, job: str = "") -> KeepAlive:
        """What keeps a sidecar started by ``run`` alive, and tells that ``job`` goes on, once ``take`` or ``ping`` was called and until
        ``close``."""
        return KeepAlive(self.address, self._headers.get("Forebay-Token", ""), job)

    def _once(self, method: str, path: str, body: bytes | None = None, *, timeout_s: float) -> bytes:
        with self._answer(method, path, body, timeout_s, {"Content-Type": "application/json"} if body else {}) as answer:
            return answer.read()

    @contextmanager
    def _answer(
        self, method: str, path: str, body: bytes | None, timeout_s: float, headers: Mapping[str, str], target: str = ""
    ) -> Iterator[http.client.HTTPResponse]:
        """``target``: the shard whose origin the answer may have to wait for. Its silence is the origin's where the sidecar answers."""
        connection = connection_to(self.address, timeout_s)
        try:
            connection.request(method, path, body, {**self._headers, **headers})
            if target and not select.select([connection.sock], [], [], min(_TELL_S, timeout_s))[0]:
                notice(f"still waiting: {self._cause_of_wait(target)} (shard {_name(target)})")
                connection.sock.settimeout(max(timeout_s - _TELL_S, 0.1))
            answer = connection.getresponse()
            if answer.status >= 400:
                raise _refusal(self.address, answer.status, answer.read(64 * 1024))
            yield answer
        except (OSError, http.client.HTTPException) as error:
            if target and isinstance(error, TimeoutError):
                raise self._no_origin(target, timeout_s) from error
            raise _unreachable(self.address, error) from error
        finally:
            connection.close()

    def _cause_of_wait(self, target: str) -> str:
        """What the readers of a shard wait for, as the sidecar says. Raises ``SidecarUnreachable`` where that is what hangs."""
        name, origin = _name(target), Shard.of(parse_proxy_target(target)).origin
        found = [row for row in self.status()["readers"] if row["shard"] == name and row.get("waiting_for")]
        longest = max(found, key=lambda row: float(row["waited_s"]), default={"waiting_for": "the origin has not answered yet"})
        return str(longest["waiting_for"]).removeprefix(f"{origin}: ")

    def _no_origin(self, target: str, within_s: float) -> SidecarRefused:
        """The origin kept the sidecar waiting for longer than a verb waits."""
        cause, settings = self._cause_of_wait(target), self.status().get("settings", {})
        budget_s = settings.get("retry_budget_s", {}).get("value")
        going_on = f"readers wait for up to {budget_s:g} s (--retry-budget-s)" if budget_s else "readers wait for longer"
        step = f"{going_on}; ask the origin for the same URL with curl -v"
        return SidecarRefused(f"shard {_name(target)}: no bytes within {within_s:g} s: {cause}", next_step=step, status=503)


def _table(body: bytes) -> Table:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SidecarUnreachable("what answers there is not a Forebay sidecar", next_step="check --url and FOREBAY_URL")
    return found


def _refusal(address: str, status: int, body: bytes) -> SidecarRefused:
    """The sidecar's problem+json (RFC 9457) as an error; anything else by its status."""
    try:
        problem = json.loads(body)
        text = str(problem.get("detail") or problem.get("title"))
        return SidecarRefused(text, next_step=str(problem.get("next_step", "")), status=status)
    except (ValueError, AttributeError):
        words = body.decode("utf-8", "replace").strip() if len(body) < 200 else ""  # /readyz says "starting" or "draining"
        if status != 503:
            words = f"what answers at {address} is not a Forebay sidecar: HTTP {status} {http.client.responses.get(status, '')}".rstrip()
            return SidecarRefused(words, next_step="check --url and FOREBAY_URL", status=status)
        return SidecarRefused(f"the sidecar answers {status}: {words or http.client.responses.get(status, '')}", status=status)


def _name(target: str) -> str:
    """The shard at ``target`` as the sidecar calls it."""
    return Shard.of(parse_proxy_target(target)).name


def _unreachable(address: str, error: Exception) -> SidecarUnreachable:
    """Why nothing came from ``address``: a process of ours that is there and says nothing must not be started a second time."""
    silent = isinstance(error, (TimeoutError, BlockingIOError))  # a unix socket whose backlog is full says so at once
    live: list[RunFile] = []
    with suppress(ConfigError):
        live = RunDirectory.of(os.environ).live() if silent else []
    record = next((record for record in live if address in (record.url, f"unix:{record.socket}")), None)  # ours, and alive
    if record is None:
        return SidecarUnreachable(f"no sidecar answers at {address}: {cause(error)}", next_step="start one with 'forebay serve'")
    where = f"the sidecar at {address} (pid {record.pid})"
    if is_stopped(record.pid):
        step = f"'kill -CONT {record.pid}' lets it go on, 'forebay stop' ends it"
        return SidecarHung(f"{where} is stopped, so it does not answer", next_step=step)
    return SidecarHung(f"{where} runs but does not answer: it hangs, or the machine swaps", next_step="'forebay stop' ends it")


def named_address(url: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """(address, who named it) by ``--url`` or ``FOREBAY_URL``; ("", "") when nobody did."""
    if url:
        return url, "--url"
    return (environ["FOREBAY_URL"], "FOREBAY_URL") if environ.get("FOREBAY_URL") else ("", "")


def token_of(environ: Mapping[str, str]) -> str:
    """What to send as Forebay-Token: the variable's, else the file's."""
    if environ.get("FOREBAY_TOKEN"):
        return environ["FOREBAY_TOKEN"]
    try:
        token = load({}, environ, find_file(None, environ)).token
    except ConfigError:  # other settings may be wrong; that is for the verbs that use them to say
        return ""
    return token.get_secret_value() if token else ""


def locate(url: str | None, environ: Mapping[str, str]) -> SidecarClient:
    """By ``--url``, ``FOREBAY_URL``, ``FOREBAY_SOCKET``, else by the run files, one with this environment's credentials first.

    The sidecar is known to be ready. Raises ``ConfigError`` when there is none, ``SidecarUnreachable`` when it does not answer.
    """
    sidecar = SidecarClient(_address(url, environ), token=token_of(environ))
    try:
        sidecar.ready()
    except SidecarUnreachable as error:
        if not url and environ.get("FOREBAY_URL") and not isinstance(error, SidecarHung):
            error.next_step = "FOREBAY_URL names it: unset that, or start one there with 'forebay serve'"
        raise
    return sidecar


def _address(url: str | None, environ: Mapping[str, str]) -> str:
    named, _ = named_address(url, environ)
    if named:
        return named
    socket = environ.get("FOREBAY_SOCKET", "")
    if socket.startswith("/") and Path(socket).is_socket():
        return f"unix:{socket}"
    directory = RunDirectory.of(environ)
    if not (live := directory.live()):
        raise ConfigError("no sidecar runs on this node", next_step="start one with 'forebay serve', or use 'forebay run -- <command>'")
    fingerprint = directory.fingerprint(environ)
    return next((record for record in live if record.fingerprint == fingerprint), live[0]).url
