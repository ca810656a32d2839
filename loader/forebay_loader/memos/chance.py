"""Whether something drew random numbers: what is kept would be drawn once, and be the same for ever."""

from __future__ import annotations

import random
import sys
from typing import Any, Dict, List

from forebay_loader.resume.sample_draws import times_asked

__all__ = ["drawn_since", "generators_now"]


def generators_now() -> Dict[str, Any]:
    """Where each generator stands that everybody draws from: some 30 us. One that a function makes for itself is not seen."""
    found: Dict[str, Any] = {"random": random.getstate(), "fb.rng": times_asked()}
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy_random is not None:
        state = numpy_random.get_state()
        found["numpy.random"] = (state[1].tobytes(), *state[2:])
    if torch is not None:
        found["torch"] = torch.get_rng_state().numpy().tobytes()
    return found


def drawn_since(before: Dict[str, Any]) -> List[str]:
    """Which of them moved; one that was not loaded then has not."""
    now = generators_now()
    return [name for name, state in before.items() if now[name] != state]
