"""An origin that answers in every way that tempts a client to write down what it was sent: it echoes credentials in bodies and headers."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from support.scripted_answers import Answer, Call, Fault, Seen
from support.scripted_origin import ScriptedOrigin

__all__ = ["SHARD_BYTES", "Leaks", "sent_to"]

SHARD_BYTES = 300_000
_ECHOING = ("denied", "missing", "broken", "busy")
_KINDS = (*_ECHOING, "redirect", "away", "elsewhere", "loop", "cut", "nonsense")


class Leaks(Fault):
    """A word in the path says how. ``echoes`` counts the answers that repeated what came in; ``/elsewhere…`` redirects to that base."""

    def __init__(self, elsewhere: str = "") -> None:
        self.echoes = 0
        self.elsewhere = elsewhere

    def answer(self, call: Call) -> Answer:
        kind = next((word for word in _KINDS if word in call.seen.path), "")
        self.echoes += kind in _ECHOING
        echo = f"{call.seen.target} {call.seen.headers!r}"
        if kind in _ECHOING:
            return call.honest(**_echoing(kind, echo))
        return call.honest(**self._otherwise(kind, call.seen, echo))

    def _otherwise(self, kind: str, seen: Seen, echo: str) -> dict[str, Any]:
        shard = {"status": None, "body": b"s" * SHARD_BYTES}
        match kind:
            case "redirect":
                return _led(f"/signed/0.tar?{seen.query}")
            case "away":
                return _led(f"http://u:{seen.headers.get('x-vault-token', 'p')}@169.254.169.254/latest?{seen.query}")
            case "elsewhere":
                return _led(f"{self.elsewhere}/there.tar")
            case "loop":
                return _led(seen.target)
            case "cut":
                return {**shard, "ranges": False, "cut_after": 1000}
            case "nonsense":
                return {"before": f"HTTP/1.1 2oo {echo}\r\n{echo}\r\n\r\n".encode(), "cut_after": -1}
        return {**shard, "etag": '"v1"'}


def _echoing(kind: str, echo: str) -> dict[str, Any]:
    match kind:
        case "denied":  # as S3 answers a wrong signature: with the key, the string to sign and all
            inner = "".join(f"<{name}>{echo}</{name}>" for name in ("StringToSign", "AWSAccessKeyId", "Message"))
            body = f"<Error><Code>SignatureDoesNotMatch</Code>{inner}</Error>"
            return {"status": 403, "body": body.encode(), "headers": (("WWW-Authenticate", f'Bearer realm="{echo!a}"'),)}
        case "missing":
            return {"status": 404, "body": f"<Error><Code>NoSuchKey</Code><Key>{echo}</Key></Error>".encode()}
        case "busy":
            return {"status": 503, "body": f"<Error><Code>{echo}</Code></Error>".encode(), "headers": (("Retry-After", echo),)}
    return {"status": 500, "body": echo.encode()}


def _led(location: str) -> dict[str, Any]:
    return {"status": 302, "headers": (("Location", location),)}


def sent_to(origin: ScriptedOrigin) -> set[str]:
    """Every value of a query or a header that came."""
    return {value for seen in origin.requests for value in (*seen.headers.values(), *(value for _, value in parse_qsl(seen.query)))}
