"""How this sidecar meets the outside: through which proxy, with which certificate authorities, and by which mark it recognises itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay_proxy.core.request_loop import LoopGuard
from forebay_proxy.origins.net.proxies import Proxies
from forebay_proxy.origins.net.trust import Trust

__all__ = ["Egress", "heeded"]

# Variables that many programs read to reach servers; proxies' in both spellings. No settings of ours: their meaning is fixed.
HEEDED = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "AWS_CA_BUNDLE")


@dataclass(frozen=True, slots=True)
class Egress:
    """The plain one: no proxy, the system's authorities, no mark."""

    proxies: Proxies | None = None  # None: the operator named none
    trust: Trust = field(default_factory=Trust)
    loop_guard: LoopGuard = field(default_factory=LoopGuard)

    @classmethod
    def of(cls, environ: Mapping[str, str], instance: str) -> Egress:
        """As the operator's environment has it. Raises ``ConfigError``."""
        return cls(Proxies.of(environ) or None, Trust.of(environ), LoopGuard(instance))


def heeded(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """(name, value as people may see it) of those variables that are set: a proxy's user and password are masked."""
    spellings = [spelling for name in HEEDED for spelling in ((name.lower(), name) if name.endswith("_PROXY") else (name,))]
    return [(name, re.sub(r"(?s)^(\w+://)?.*@", r"\1***@", environ[name])) for name in spellings if environ.get(name)]
