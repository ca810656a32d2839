"""What of a person's settings has no effect, because the sidecar that was joined runs with others. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay_proxy.config.layers import flag_name
from forebay_proxy.config.settings import Settings
from forebay_proxy.config.settings_text import as_json, has_flag
from forebay_proxy.core.quantities import format_size

__all__ = ["differences", "unknown_origins"]

# How long an idle sidecar stays is its starter's business; the other two say where a job looks for a sidecar, not what it needs.
_NO_MATTER = frozenset({"idle_exit_s", "host", "socket", "allow_origin"})
_SIZES = frozenset({"cache_size"})


def differences(mine: Settings, running: Mapping[str, Any]) -> list[str]:
    """The settings that were given (not defaults) and are others in the sidecar, as a person reads them: what runs, what was asked for.

    ``running``: ``settings`` of its ``/v1/status``.
    """
    found = []
    for name, own in as_json(mine).items():
        theirs = running.get(name)
        if own["source"] == "default" or name in _NO_MATTER or theirs is None or own["value"] == theirs["value"]:
            continue
        label = flag_name(name) if has_flag(name) else name
        found.append(f"{label} {_shown(name, theirs['value'])}, not {_shown(name, own['value'])}")
    return found


def unknown_origins(mine: Settings, running: Mapping[str, Any]) -> list[str]:
    """The entries of ``--allow-origin`` that the sidecar does not know yet."""
    known = set((running.get("allow_origin") or {}).get("value") or ())
    return [entry for entry in mine.allow_origin if entry not in known]


def _shown(name: str, value: Any) -> str:
    if name in _SIZES and isinstance(value, int):
        return format_size(value)
    if value is None or value == []:
        return "(default)"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
