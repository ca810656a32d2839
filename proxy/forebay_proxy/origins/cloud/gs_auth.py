"""google-auth's leaf: application default credentials and their tokens. Everything here blocks and runs in one thread of its own.

Looking for credentials reads files and, where there are none, asks the machine's metadata service once, for two seconds at most: it is
asked as every Google library asks it, and is no origin. A token costs a request an hour.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import google.auth
import google.auth.exceptions
import google.auth.transport
import google.auth.transport.requests
import requests
from google.auth import credentials as google_credentials

from forebay_proxy.core.errors import OriginUnavailable, ShardForbidden

__all__ = ["Authorization", "Google"]

log = logging.getLogger("forebay")

_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_only",)
_CALL_S = 10.0  # of each call for a token; the library's own limit is two minutes
_PROBE_S = 2.0  # the service answers within milliseconds where there is one, and DMI tells of a machine whose service is late
_EARLY_S = 225.0  # the library's own margin: a token is renewed this long before its end
# How often refused credentials are read anew, and a renewal ahead of its time is tried; more would only slow all other requests.
_AGAIN_S = 10.0
_FAILED_S = 1.0  # callers that wait behind a failed call get its error at once, instead of one time limit after the other
_LOG_IN = "run 'gcloud auth application-default login', or set GOOGLE_APPLICATION_CREDENTIALS, for the sidecar"


@dataclass(frozen=True, slots=True)
class Authorization:
    """What a request carries to prove itself; no headers for nobody. ``until``: seconds since the epoch, when to ask for another one."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    until: float = float("inf")


class Google:
    """Not thread-safe: one thread calls it. Reads the process's environment, as the library does."""

    def __init__(self, environ: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.time) -> None:
        self._environ = environ
        self._clock = clock
        session = requests.Session()
        session.verify = environ.get("SSL_CERT_FILE") or True
        self._session = session
        self._call = _Bounded(google.auth.transport.requests.Request(session))
        self._credentials: Any = None
        self._looked = False
        self._instead_at = float("-inf")
        self._failed: tuple[float, OriginUnavailable] | None = None
        # Its warnings (no metadata service, no project) are our one line, said by who asks.
        logging.getLogger("google.auth").setLevel(logging.ERROR)

    def authorization(self, shard: str) -> Authorization:
        """A token that is good for minutes, renewed if need be; none where there are no credentials. Raises the ``ShardError`` family."""
        if not self._looked:
            self._credentials = self._find(shard)
            self._looked = True
        if self._credentials is None:
            return Authorization()
        left = self._left()
        if left < _EARLY_S:
            try:
                self._refresh(shard)
            except OriginUnavailable:
                if left <= 0:
                    raise
                return Authorization(self._headers(), self._clock() + min(_AGAIN_S, left))
            left = self._left()
        return Authorization(self._headers(), self._clock() + left - min(_EARLY_S, left / 2))

    def instead(self, shard: str, rejected: tuple[tuple[str, str], ...]) -> Authorization:
        """What to send instead of ``rejected``: files and services are asked again, if nobody did so a moment ago. May be the same."""
        now = self._clock()
        current = () if self._credentials is None else self._headers()
        if current == rejected and abs(now - self._instead_at) >= _AGAIN_S:
            self._instead_at = now
            self._looked = False
        return self.authorization(shard)

    def close(self) -> None:
        self._session.close()

    def _left(self) -> float:
        """Seconds for which the token is good; infinite for one that never ends."""
        if self._credentials.token is None:
            return 0.0
        expiry = self._credentials.expiry  # naive, in UTC
        return float("inf") if expiry is None else float(expiry.replace(tzinfo=UTC).timestamp()) - self._clock()

    def _headers(self) -> tuple[tuple[str, str], ...]:
        headers: dict[str, str] = {}
        self._credentials.apply(headers)
        quota = getattr(self._credentials, "quota_project_id", None)
        named = {"Authorization": headers.get("authorization") or headers.get("Authorization", "")}
        return (*named.items(), *([("x-goog-user-project", quota)] if quota else []))

    def _refresh(self, shard: str) -> None:
        if self._failed is not None and 0 <= self._clock() - self._failed[0] < _FAILED_S:
            raise OriginUnavailable(shard, self._failed[1].cause, next_step=self._failed[1].next_step) from self._failed[1]
        try:
            self._credentials.refresh(self._call)
        except google.auth.exceptions.GoogleAuthError as error:
            if not error.retryable:
                raise ShardForbidden(shard, "Google gives no token for the sidecar's credentials", next_step=_LOG_IN) from error
            step = "see whether this machine reaches it; --gs-anonymous reads public buckets without"
            failed = OriginUnavailable(shard, f"Google's token service did not answer ({_cause(error)})", next_step=step)
            self._failed = (self._clock(), failed)
            raise failed from error

    def _find(self, shard: str) -> Any:
        """Credentials from the variable, the file of gcloud, or the machine; None for none."""
        named = self._environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        found = named or self._gcloud_file()
        try:
            if found:
                # Not google.auth.default(): for a file of gcloud's it would run gcloud to learn of a project nobody needs here.
                credentials, _ = google.auth.load_credentials_from_file(found, request=self._call)  # type: ignore[no-untyped-call]
                return google_credentials.with_scopes_if_required(credentials, _SCOPES)  # type: ignore[no-untyped-call]
            return google.auth.default(scopes=_SCOPES, request=self._call)[0]
        except google.auth.exceptions.GoogleAuthError as error:
            if not found:
                return None
            where = "GOOGLE_APPLICATION_CREDENTIALS" if named else "gcloud's application default credentials"
            raise ShardForbidden(shard, f"{where}: the file cannot be used ({type(error).__name__})", next_step=_LOG_IN) from error

    def _gcloud_file(self) -> str:
        home = self._environ.get("CLOUDSDK_CONFIG") or os.path.expanduser("~/.config/gcloud")
        path = os.path.join(home, "application_default_credentials.json")
        return path if os.path.isfile(path) else ""


# The answer of a metadata service that is not there; the library asks one that fails three times over, with pauses.
_NOWHERE = SimpleNamespace(status=404, headers={}, data=b"")


class _Unanswered(google.auth.exceptions.RefreshError):
    """Of this class because the library repeats what fails with others, three times over and with pauses of seconds."""


class _Bounded(google.auth.transport.Request):
    """Google's way to make requests, each within a few seconds. Repeating them is left to the retry budget."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(
        self, url: str, method: str = "GET", body: Any = None, headers: Any = None, timeout: float | None = None, **more: Any
    ) -> Any:
        parts = urlsplit(url)
        metadata = any(name.lower() == "metadata-flavor" for name in headers or ())
        most = _PROBE_S if metadata else _CALL_S
        if metadata:
            more["proxies"] = {"no_proxy": parts.hostname}  # a proxy has a metadata service of its own, or none
        try:
            answer = self._call(url=url, method=method, body=body, headers=headers, timeout=min(timeout or most, most), **more)
        except google.auth.exceptions.TransportError as error:
            if metadata and parts.path in ("", "/"):
                return _NOWHERE
            raise _Unanswered("no connection", retryable=True) from error  # type: ignore[no-untyped-call]
        if answer.status in (408, 429) or answer.status >= 500:
            raise _Unanswered(f"answered {answer.status}", retryable=True)  # type: ignore[no-untyped-call]
        return answer


def _cause(error: BaseException) -> str:
    """The class of what lies beneath: texts of libraries may carry URLs."""
    while error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__
