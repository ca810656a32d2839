"""How this sidecar meets the outside: through which proxy, with which certificate authorities, and by which mark it recognises itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay_proxy.core.request_loop import LoopGuard
from forebay_proxy.origins.net.proxies import Proxies
from forebay_proxy.origins.net.trust import Trust

__all__ = ["Egress"]


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
