"""Named ranges in a profile of torch's; without torch, and where nobody profiles, nothing."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any, ContextManager

__all__ = ["profiled"]

_NOTHING: ContextManager[Any] = nullcontext()


def profiled(name: str) -> ContextManager[Any]:
    """``torch.profiler.record_function(name)`` where somebody profiles; torch is not imported for this."""
    torch = sys.modules.get("torch")
    # Torch's own flag, which its functions of modules look at too; where there is none, a range is begun: it costs some microseconds.
    if not getattr(sys.modules.get("torch.autograd.profiler"), "_is_profiler_enabled", torch is not None):
        return _NOTHING
    profiler = getattr(torch, "profiler", None)
    return profiler.record_function(name) if profiler is not None else _NOTHING
