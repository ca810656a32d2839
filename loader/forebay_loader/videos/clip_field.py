"""The field of a sample that names its clip, for ``fb.video(…, source=…)``: no bytes are read here, and no PyAV imported."""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping

from forebay_loader.base.shown_text import shown_source
from forebay_loader.videos.sources.kinds import scheme_of

__all__ = ["clip_named_in", "keyed", "scanned_as", "shown_clip", "url_of"]


def clip_named_in(sample: Mapping[str, Any], field: str) -> Any:
    """The value of ``field``: a key of ``sample``, else, with a dot, a key in one of its tables (``json.url``). Raises ``ValueError``."""
    if field in sample:
        return sample[field]
    key, dot, inner = field.partition(".")
    table = sample.get(key)
    if dot and isinstance(table, Mapping) and inner in table:
        return table[inner]
    of, has = shown_source(sample.get("__url__") or "a shard that is not known"), ", ".join(map(repr, sample))
    raise ValueError(f"the sample {sample.get('__key__')!r} of {of} has no {field!r}, which fb.video(source=…) names; it has {has}")


def url_of(value: Any) -> str:
    """The URL or path in what names a clip; "" where there is none."""
    what = value.get("url") if isinstance(value, Mapping) else value
    found = os.fspath(what) if isinstance(what, (str, os.PathLike)) else ""
    return found if isinstance(found, str) else ""


def scanned_as(value: Any) -> str:
    """The URL by which ``forebay index --video`` scans it: of a path that of its file."""
    text = url_of(value)
    return text if scheme_of(text) != text else f"file://{os.path.abspath(text)}"


def shown_clip(value: Any) -> str:
    """How errors call it: without a query or an account, either of which may hold a secret."""
    text = url_of(value)
    return (text if text.startswith("lmdb:") else shown_source(text) if ":" in text else text) or type(value).__name__


def keyed(sample: Mapping[str, Any], field: str) -> Dict[str, Any]:
    """``sample``, where it has no key of its own (the items of a list of URLs) with that of its clip."""
    if "__key__" in sample:
        return dict(sample)
    value = clip_named_in(sample, field)
    return {"__key__": shown_clip(value), "__url__": url_of(value), **sample}
