"""Named ranges in a profile of torch's; without torch, and where nobody profiles, nothing."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any, ContextManager

__all__ = ["is_profiled", "profiled"]

_NOTHING: ContextManager[Any] = nullcontext()


def is_profiled() -> bool:
    """Whether somebody profiles, or nobody can tell."""
    # Torch's own flag, which its functions of modules look at too; where there is none, a range is begun: it costs some microseconds.
    return bool(getattr(sys.modules.get("torch.autograd.profiler"), "_is_profiler_enabled", "torch" in sys.modules))


def profiled(name: str) -> ContextManager[Any]:
    """``torch.profiler.record_function(name)`` where somebody profiles; torch is not imported for this."""
    profiler = getattr(sys.modules.get("torch"), "profiler", None) if is_profiled() else None
    return profiler.record_function(name) if profiler is not None else _NOTHING
