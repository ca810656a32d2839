"""How a sidecar knows its own request when it comes back to it: by a header, CDN-Loop (RFC 8586). Pure.

The guard keeps us from dialling ourselves; a web server or an upstream proxy that points back is another way round, and only the header
shows it. Every request to an origin carries ``forebay;id=<instance>``, after those of other sidecars that the asking request carried, so
that two sidecars that ask each other in a circle notice too, and two in a row are fine. Nothing else of the client's header travels.

Not Via, which means the same to a proxy: origins switch compression and ranges off when they see one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from forebay_proxy.core.errors import ForebayError

__all__ = ["CDN_LOOP", "LoopDetected", "LoopGuard"]

CDN_LOOP = "CDN-Loop"
_MOST = 8  # sidecars in a row; more than two have not been thought of, and a header must not grow without end
_TOKEN = re.compile(r"forebay;id=([0-9a-f]{1,32})", re.ASCII)


class LoopDetected(ForebayError):
    """The request comes from this very sidecar, by whatever way round. Asking again brings it again."""

    status = 508
    title = "Loop detected"


class LoopGuard:
    """The mark of one sidecar. ``instance`` is hex digits nobody can guess: no other request is taken for ours. "" marks nothing."""

    def __init__(self, instance: str = "") -> None:
        """``own`` is the header of a request made for one that carried no marks."""
        self._instance = instance
        self.own = self.mark()

    def mark(self, carried: str = "") -> Mapping[str, str]:
        """The header of a request to an origin, made for one that ``carried`` these marks."""
        marks = [carried] if carried else []
        return {CDN_LOOP: ", ".join([*marks, f"forebay;id={self._instance}"])} if self._instance else {}

    def heard(self, values: Iterable[str]) -> str:
        """The marks of other sidecars in a request's CDN-Loop header, as ``mark`` takes them. Raises ``LoopDetected``."""
        found = list(dict.fromkeys(_TOKEN.findall(", ".join(values))))
        if self._instance and self._instance in found:
            raise LoopDetected(
                "this request was sent by this very Forebay: what it names leads back here",
                next_step="let the web server or proxy on the way point to the origin, not to Forebay",
            )
        if len(found) > _MOST:
            raise LoopDetected(f"this request has passed {len(found)} sidecars", next_step="let one sidecar ask the origin")
        return ", ".join(f"forebay;id={each}" for each in found)
