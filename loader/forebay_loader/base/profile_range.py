"""Named ranges in a profile of torch's; without torch, nothing. A range costs a microsecond where nobody profiles."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any, ContextManager

__all__ = ["profiled"]


def profiled(name: str) -> ContextManager[Any]:
    """``torch.profiler.record_function(name)`` where the process has imported torch: it is not imported for this."""
    profiler = getattr(sys.modules.get("torch"), "profiler", None)
    return profiler.record_function(name) if profiler is not None else nullcontext()
