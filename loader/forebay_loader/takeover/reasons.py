"""Why a shard is not opened through the sidecar, in words that may be printed: schemes and commands, never a URL."""

from __future__ import annotations

import os
from typing import Any

from forebay_loader.stream.webdataset_openers import enabled, gopen_module, left_command, refused, source_of

__all__ = ["why_direct"]


def why_direct(item: Any) -> str:
    """ "" where ``item`` is opened through the sidecar."""
    url = item.get("url") if isinstance(item, dict) else item
    if not isinstance(url, (str, os.PathLike)):
        return "not a URL"
    text = os.fspath(url)
    if enabled() is None:
        return "fb.disable() was called"
    try:
        if isinstance(text, str) and source_of(text) is not None:
            return ""
    except Exception:
        return "a URL that Forebay does not understand"
    return _reason(str(text))


def _reason(text: str) -> str:
    scheme = text.partition(":")[0].lower() if ":" in text else ""
    if not scheme.isalnum() or scheme == "file":
        return "local files"
    found = gopen_module().gopen_schemes.get(scheme)
    if found is not None and getattr(found, "__module__", "") not in ("webdataset.gopen", "forebay_loader.stream.webdataset_openers"):
        return f"the script has its own opener for {scheme}"
    if unserved := refused(text):
        return f"the sidecar does not serve {unserved} shards"
    if scheme == "pipe":
        return left_command(text)
    return "hf buckets are not read" if text.startswith("hf://buckets/") else f"Forebay does not read {scheme} shards"
