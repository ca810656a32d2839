"""What an ``hf://`` URL names: a file of a repository on a Hugging Face hub, at a revision. Pure.

``hf://[datasets/|spaces/|models/|kernels/]org/name[@revision]/path``, as ``huggingface_hub`` reads it: an ``@`` counts only right after the
name, a revision's own slashes are written ``%2F`` (``refs/pr/N`` and ``refs/convert/NAME`` may keep theirs).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, ShardUrl

__all__ = ["RepoFile", "repo_file"]

_PREFIXES = {"datasets": "datasets/", "spaces": "spaces/", "models": "", "kernels": "kernels/"}
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
_SPECIAL = re.compile(r"refs/(?:convert/\w+|pr/\d+)(?=/)", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
_FORM = "hf://datasets/org/name[@revision]/path/shard.tar"


@dataclass(frozen=True)
class RepoFile:
    """A file of a repository. ``prefix`` is the kind as the hub's URLs have it ("" for models), ``path`` is literal."""

    prefix: str
    repo: str
    revision: str
    path: str

    @property
    def is_immutable(self) -> bool:
        """Whether the revision is a commit, which never means other bytes."""
        return _COMMIT.fullmatch(self.revision) is not None

    def resolve_path(self) -> str:
        """The path of the hub's URL for the file's bytes, percent-encoded."""
        return f"/{self.prefix}{self.repo}/resolve/{quote(self.revision, safe='')}/{quote(self.path)}"


def repo_file(url: ShardUrl) -> RepoFile:
    """The file that an hf URL names. Raises ``InvalidShardUrl``."""
    kind, rest = url.authority, url.key()
    if kind == "buckets":
        raise InvalidShardUrl(f"hf buckets are not read; write a file of a repository, as {_FORM}")
    if kind not in _PREFIXES:
        kind, rest = "models", f"{url.authority}/{rest}"
    space, _, named = rest.partition("/")
    head, at, tail = named.partition("@")
    if at and "/" not in head:
        name, (revision, path) = head, _revision(tail)
    else:
        (name, _, path), revision = named.partition("/"), "main"
    if not (_NAME.fullmatch(space) and _NAME.fullmatch(name) and revision and path) or {".", ".."} & {name, *revision.split("/")}:
        raise InvalidShardUrl(f"not a file of a Hugging Face repository; write {_FORM}, or hf://org/name/path for a model")
    return RepoFile(_PREFIXES[kind], f"{space}/{name}", revision, path)


def _revision(text: str) -> tuple[str, str]:
    """``text`` after the ``@``: the revision and the path."""
    special = _SPECIAL.match(text)
    if special is not None:
        return special.group(), text[special.end() + 1 :]
    revision, _, path = text.partition("/")
    return unquote(revision), path
