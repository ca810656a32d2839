"""A file's name in this file system, the shard it stands for, and its path in the file system of its store."""

from __future__ import annotations

from typing import Any, Optional
from urllib.parse import quote

import fsspec
from fsspec.utils import stringify_path

from forebay_loader.base.notices import notice_once
from forebay_proxy.wire.commands.sources import Source
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, ShardUrl, parse_origin_url, parse_proxy_target

__all__ = ["PROTOCOL", "Target", "file_name"]

PROTOCOL = "forebay"
SERVED = ("https", "http", "s3", "gs", "hf")


def file_name(path: Any) -> Any:
    """The file's name here, whichever way it is written; of a chain's target without a scheme the path alone."""
    if isinstance(path, list):
        return [file_name(each) for each in path]
    text = str(stringify_path(path))
    for prefix in (f"{PROTOCOL}::", f"{PROTOCOL}://"):
        text = text[len(prefix) :] if text.startswith(prefix) else text
    scheme, separator, _ = text.partition("://")
    if separator and scheme.lower() in SERVED:
        return _name(_url(text))
    head, slash, _ = text.partition("/")
    return f"{PROTOCOL}://{text}" if slash and head in SERVED else text


class Target:
    """The store behind the sidecar, as fsspec's chaining names it: ``protocol``, its file system's ``options``, the file meant (``fo``)."""

    def __init__(self, protocol: Optional[str], options: dict[str, Any], fo: str) -> None:
        self._protocol = protocol
        self._options = options
        self._fo = fo

    def __repr__(self) -> str:
        return f"<Target {self._protocol or 'of any protocol'}>"

    def source(self, path: str) -> tuple[str, Source]:
        """The name of ``path`` here, and what it is of. Raises ``ValueError`` for what no shard can be named by."""
        name = file_name(path) or file_name(self._fo)
        if not name.startswith(f"{PROTOCOL}://"):
            name = file_name(f"{self._protocol}://{name.lstrip('/')}")
        if not name.startswith(f"{PROTOCOL}://"):
            raise ValueError(f"{path}: Forebay reads {', '.join(SERVED)}; write forebay::https://host/a.tar")
        try:
            url = parse_proxy_target(name[len(PROTOCOL) + 2 :])
            return name, Source(self._with_options(url), self._headers(url.scheme), name)
        except InvalidShardUrl as error:
            raise ValueError(f"{path}: {error}") from error

    def store(self, path: str) -> tuple[Any, str]:
        """The file system that fsspec has for the store, and the path in it."""
        url = parse_proxy_target(self.source(path)[0][len(PROTOCOL) + 2 :])
        options = self._options if self._protocol in (url.scheme, None) else {}
        fs = fsspec.filesystem(url.scheme, **options)
        return fs, fs._strip_protocol(url.text())

    def _headers(self, scheme: str) -> tuple[tuple[str, str], ...]:
        """The credential among the target's options; it goes to its host by way of the sidecar."""
        options = self._options
        if scheme in ("http", "https"):
            given = {**(options.get("headers") or {}), **((options.get("client_kwargs") or {}).get("headers") or {})}
            return tuple((str(name), str(value)) for name, value in given.items())
        token = options.get("token")
        return (("Authorization", f"Bearer {token}"),) if scheme == "hf" and isinstance(token, str) else ()

    def _with_options(self, url: ShardUrl) -> ShardUrl:
        if url.scheme != "s3" or url.query:
            return url
        given = self._options
        endpoint = given.get("endpoint_url") or (given.get("client_kwargs") or {}).get("endpoint_url")
        said = {"endpoint": endpoint, "unsigned": "1" if given.get("anon") else None, "profile": given.get("profile")}
        query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in said.items() if value)
        if any(given.get(name) for name in ("key", "secret", "token")):
            notice_once("fs-keys", "keys in s3 options are not used: the sidecar signs with its own, as AWS_PROFILE and the like name them")
        return parse_proxy_target(f"{url.proxy_path()}?{query}") if query else url


def _url(text: str) -> ShardUrl:
    try:
        return parse_origin_url(text)
    except InvalidShardUrl as error:
        raise ValueError(str(error)) from error


def _name(url: ShardUrl) -> str:
    return f"{PROTOCOL}:/{url.proxy_path()}"
