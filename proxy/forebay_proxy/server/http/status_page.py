"""The status page's files, read once, and the headers that keep them harmless."""

from __future__ import annotations

from importlib.resources import files

__all__ = ["PAGE_HEADERS", "page_files"]

# Nothing but our own files is loaded, and nobody frames the page.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_files() -> dict[str, tuple[bytes, str]]:
    """Body and content type by path."""
    folder = files("forebay_proxy").joinpath("page")
    kinds = {
        "/": ("status.html", "text/html"),
        "/page/status.js": ("status.js", "text/javascript"),
        "/page/status.css": ("status.css", "text/css"),
    }
    return {path: (folder.joinpath(name).read_bytes(), f"{kind}; charset=utf-8") for path, (name, kind) in kinds.items()}
