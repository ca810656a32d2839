"""A question to the sidecar about one shard, and its refusals.

The question carries the credential that a person gave, and says which reader asks. It waits for no sidecar that hangs.
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

# A request's headers that are ours to set; the rest of what a person wrote travels.
_RESERVED = frozenset({
    "host", "range", "if-range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "connection", "keep-alive",
    "content-length", "transfer-encoding", "te", "upgrade", "expect", "accept-encoding", "forebay-reader", "forebay-token",
    "forebay-sparse", "forebay-version",
})  # fmt: skip
VERSION = "Forebay-Version"  # the ETag of the version that is meant: while the sidecar has it, no origin is asked
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
    """The sidecar's answer about ``source``, below ``prefix``, once its headers are there; ``headers`` besides those of each question.

    The sidecar is looked up afresh: a restarted one may have moved. ``tell`` is called where it turns and has not answered within
    ``limits.tell_s``; ``bearing`` says how long one that does not turn is waited for. Raises ``Unanswered``; ``ValueError`` for a
    header that cannot be sent.
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
    """What the wait for this answer, and for its body, is a wait for: the place of a cause.

    A hit's bytes were all on the sidecar's disk: it took its time, as for what is its own. All other bytes come from the origin, and so do
    refusals.
    """
    said = reply.header("Cache-Status")
    return PROXY if "hit" in said or (not said and reply.status < 300) else ORIGIN


def refusal(reply: Reply) -> str:
    """The words of an answer that brings no bytes. Raises ``Unanswered`` with them where asking again may help.

    It does not where the sidecar says so of a 503: the origin's host does not exist, or TLS with it fails.
    """
    content = reply.explanation()
    text = explain(content, reply.status)
    if is_retryable(reply.status) and not (reply.status == HTTPStatus.SERVICE_UNAVAILABLE and _is_final(content)):
        raise Unanswered(text, reached=True, retry_after_s=retry_after(reply.header("Retry-After")))
    return text


def _is_final(content: bytes) -> bool:
    """Whether a problem+json answer says that asking again is of no use."""
    try:
        return json.loads(content)["retryable"] is False
    except (ValueError, TypeError, KeyError):
        return False


def is_retryable(status: int) -> bool:
    """Whether the same question may be answered otherwise a little later."""
    return status >= 500 or status in _RETRYABLE


def safe_headers(source: Source) -> list[tuple[str, str]]:
    """The headers of the command a person wrote, less those that would break ours."""
    return [(name, value) for name, value in source.headers if name.lower() not in _RESERVED]


def shown(source: Source, text: str = "") -> str:
    """The shard's name for messages: its origin URL without the query, which may hold a signature."""
    text = text or source.url.text()
    return text.partition("?")[0] if source.url.scheme in ("http", "https") else text


def explain(content: bytes, status: int) -> str:
    """The text of a problem+json answer (RFC 9457), else the first line of whatever came."""
    try:
        problem = json.loads(content)
        parts = [str(problem[name]) for name in ("title", "detail", "next_step") if problem.get(name)]
        parts = [part.removeprefix(f"shard {problem.get('shard')}: ") for part in parts]  # whoever shows it names the shard
    except (ValueError, TypeError, AttributeError, KeyError):
        parts = content.decode("utf-8", "replace").strip().splitlines()[:1]
    return f"{': '.join(part[:1000] for part in parts) or 'no explanation'} (HTTP {status})"


def retry_after(text: str) -> Optional[float]:
    """Seconds of a ``Retry-After`` header; None for a date or nonsense."""
    return min(float(text), MAX_RETRY_AFTER_S) if text.isascii() and text.isdigit() else None
