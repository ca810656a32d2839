"""Requests to the sidecar about one shard, and the meaning of its refusals.

A request carries the user's credentials and the name of the reader. It does not wait for a sidecar that hangs, unless the caller allows it.
"""

from __future__ import annotations

import json
from functools import partial
from http import HTTPStatus
from typing import Iterable, Optional

from forebay_loader.base.activity import ORIGIN, PROXY
from forebay_loader.base.timeouts import Limits
from forebay_loader.stream.wait_notices import cause_of
from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.endpoint import find_endpoint, unnamed
from forebay_loader.transport.http import Reply, ask
from forebay_loader.transport.hung_sidecar import HUNG, Bearing, Tell, hung, look
from forebay_proxy.wire.commands.sources import Source

__all__ = ["VERSION", "ask_shard", "explain", "is_retryable", "refusal", "retry_after", "safe_headers", "shown", "waited_for"]

# Headers that only we set; all other headers of the user's command are sent.
_RESERVED = frozenset({
    "host", "range", "if-range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "connection", "keep-alive",
    "content-length", "transfer-encoding", "te", "upgrade", "expect", "accept-encoding", "forebay-reader", "forebay-token",
    "forebay-sparse", "forebay-version",
})  # fmt: skip
VERSION = "Forebay-Version"  # the ETag of the wanted version: if the sidecar has it, it asks no origin
_RETRYABLE = frozenset({408, 425, 429})
MAX_RETRY_AFTER_S = 3600.0


def ask_shard(
    source: Source,
    reader: str,
    headers: Iterable[tuple[str, str]],
    limits: Limits,
    *,
    prefix: str = "",
    method: str = "GET",
    tell: Optional[Tell] = None,
    bearing: Optional[Bearing] = None,
) -> Reply:
    """Return the sidecar's answer about ``source``, below the path ``prefix``, when its headers have arrived.

    ``headers`` are added to those of every request. The sidecar's address is looked up each time: a restarted one may have another.
    ``tell`` is called if the sidecar is alive but has not answered within ``limits.tell_s``. ``bearing`` says how long a sidecar that hangs
    is waited for. Raises ``Unanswered``, and ``ValueError`` for a header that cannot be sent.
    """
    endpoint = find_endpoint()
    if endpoint is None:
        raise Unanswered(unnamed())
    if HUNG.known() and not (bearing and bearing.alone):
        raise hung()
    carried = [*safe_headers(source), ("Accept-Encoding", "identity"), ("Forebay-Reader", reader), *headers]
    looking = partial(
        look, look_s=limits.look_s, tell_s=limits.tell_s, tell=tell, bearing=bearing, silence_s=limits.silence_s,
        why=partial(cause_of, reader),
    )  # fmt: skip
    target = prefix + source.url.proxy_path()
    return ask(endpoint, target, carried, connect_s=limits.connect_s, silence_s=limits.silence_s, look=looking, method=method)


def waited_for(reply: Reply) -> int:
    """The cause of waiting for this answer and its body: ``PROXY`` or ``ORIGIN``.

    For a hit, all bytes were in the cache, so the sidecar itself took the time. All other bytes, and refusals, come from the origin.
    """
    said = reply.header("Cache-Status")
    return PROXY if "hit" in said or (not said and reply.status < 300) else ORIGIN


def refusal(reply: Reply) -> str:
    """The text of an answer without bytes. Raises ``Unanswered`` with it if asking again may help.

    Asking again does not help if the sidecar says so in a 503: the origin's host does not exist, or TLS with it fails.
    """
    content = reply.explanation()
    text = explain(content, reply.status)
    if is_retryable(reply.status) and not (reply.status == HTTPStatus.SERVICE_UNAVAILABLE and _is_final(content)):
        raise Unanswered(text, reached=True, retry_after_s=retry_after(reply.header("Retry-After")))
    return text


def _is_final(content: bytes) -> bool:
    """Whether a problem+json answer says that asking again is useless."""
    try:
        return json.loads(content)["retryable"] is False
    except (ValueError, TypeError, KeyError):
        return False


def is_retryable(status: int) -> bool:
    """Whether the same request may succeed a little later."""
    return status >= 500 or status in _RETRYABLE


def safe_headers(source: Source) -> list[tuple[str, str]]:
    """The headers of the user's command, without those that would break ours."""
    return [(name, value) for name, value in source.headers if name.lower() not in _RESERVED]


def shown(source: Source, text: str = "") -> str:
    """The shard's name for messages: its origin URL without the query, which may hold a signature."""
    text = text or source.url.text()
    return text.partition("?")[0] if source.url.scheme in ("http", "https") else text


def explain(content: bytes, status: int) -> str:
    """The text of a problem+json answer (RFC 9457), else the first line of the answer."""
    try:
        problem = json.loads(content)
        parts = [str(problem[name]) for name in ("title", "detail", "next_step") if problem.get(name)]
        parts = [part.removeprefix(f"shard {problem.get('shard')}: ") for part in parts]  # the caller names the shard
    except (ValueError, TypeError, AttributeError, KeyError):
        parts = content.decode("utf-8", "replace").strip().splitlines()[:1]
    return f"{': '.join(part[:1000] for part in parts) or 'no explanation'} (HTTP {status})"


def retry_after(text: str) -> Optional[float]:
    """The seconds of a ``Retry-After`` header; None if it is a date or invalid."""
    return min(float(text), MAX_RETRY_AFTER_S) if text.isascii() and text.isdigit() else None
