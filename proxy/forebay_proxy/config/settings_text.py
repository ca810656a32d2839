"""Settings as people read them: what a field says of itself, its default, a value; without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import SecretStr

from forebay_proxy.config.settings import Settings
from forebay_proxy.core.quantities import ShareOfDisk, TotalBytes
from forebay_proxy.core.shard import shown_set

__all__ = ["as_json", "default_text", "field_note", "has_flag", "value_text"]

MOST_SET = 1 << 16  # characters of a pattern, as the sidecar takes it


def field_note(name: str, key: str) -> str:
    """What a field says about itself beside its description: ``metavar``, ``unset``, or "" when it says nothing."""
    extra = Settings.model_fields[name].json_schema_extra
    return str(extra.get(key, "")) if isinstance(extra, dict) else ""


def has_flag(name: str) -> bool:
    """Whether the field may be given on a command line."""
    return field_note(name, "flag") == "True"


def default_text(name: str) -> str:
    """The default as a person reads it."""
    default = Settings.model_fields[name].default
    if default is None or default == ():
        return field_note(name, "unset")
    return value_text(default)


def value_text(value: Any) -> str:
    """A plain value as a person writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def as_json(settings: Settings) -> dict[str, dict[str, Any]]:
    """Each setting's ``value``, as JSON can say it and without secrets, and its ``source``: flag, environment, file or default."""
    return {name: {"value": _told(settings, name), "source": settings.source_of(name)} for name in Settings.model_fields}


def _told(settings: Settings, name: str) -> Any:
    """A pattern may hold what proves who asks: a signature, a header of its command."""
    return [shown_set(text, MOST_SET) for text in settings.set] if name == "set" else _plain(getattr(settings, name))


def _plain(value: Any) -> Any:
    """As JSON can say it: sizes as bytes or a percentage, secrets masked."""
    match value:
        case SecretStr():
            return "(set)"
        case TotalBytes(count):
            return count
        case ShareOfDisk(ratio):
            return f"{ratio * 100:g}%"
        case Path():
            return str(value)
        case tuple():
            return [_plain(item) for item in value]
    return value
