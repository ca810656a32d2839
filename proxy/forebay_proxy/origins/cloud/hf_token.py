"""The token a hub is asked with: from the environment, else from the file ``hf auth login`` writes. Read when needed, never shown."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["HubToken", "token_path"]

log = logging.getLogger("forebay")

_MOST_BYTES = 16 * 1024
_TOKEN = re.compile(r"[\x21-\x7e]+")  # what a header may hold
_YES = ("1", "on", "yes", "true")


class HubToken:
    """The event loop's only. The file is read in a thread of its own, as homes are on network file systems that may hang."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._given = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN") or ""
        self._path = token_path(environ)
        self._off = environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").lower() in _YES
        self._read: str | None = None  # None: not looked yet
        self._thread: ThreadPoolExecutor | None = None

    def __repr__(self) -> str:
        return f"<HubToken {'none' if self._off or self._read == '' else 'not shown'}>"

    async def now(self) -> str:
        """The token, "" for none."""
        if self._read is None:
            self._read = "" if self._off else _usable(self._given or await self._from_file())
        return self._read

    async def changed(self, rejected: str) -> bool:
        """Read it anew after ``rejected`` was refused; whether there is another one now."""
        self._read = None
        return await self.now() != rejected

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    async def _from_file(self) -> str:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="forebay-token")
        return await asyncio.get_running_loop().run_in_executor(self._thread, _content, self._path)


def token_path(environ: Mapping[str, str]) -> Path:
    """Where the token file is: HF_TOKEN_PATH, else in HF_HOME, else in the cache of the user's home."""
    home = environ.get("HF_HOME") or os.path.join(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.path.expanduser(environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")))


def _content(path: Path) -> str:
    """Blocking. A file that cannot be read is none, and that is said: public repositories go on being read."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        log.warning("hf: the token file cannot be read (%s); only public repositories are", error.strerror)
        return ""


def _usable(text: str) -> str:
    token = text.replace("\r", "").replace("\n", "").strip()
    if token and not _TOKEN.fullmatch(token):
        log.warning("hf: the token holds characters that no token has and is not sent; only public repositories are read")
        return ""
    return token
