"""What ``curl`` and ``wget`` command lines fetch: a URL, and the headers that prove who asks. Pure, runs nothing."""

from __future__ import annotations

import base64
import re
from typing import Iterable
from urllib.parse import unquote

from forebay_proxy.wire.commands.shell import Command, NotRewritten, Words, flag_table, sort_words
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, ShardUrl, parse_origin_url

__all__ = ["STDOUT", "curl", "unglobbed", "userinfo_header", "wget"]

STDOUT = ("-", "/dev/stdout")

# Timeouts and retries are skipped: the sidecar has its own, and repeats without sending a byte twice. Not in the table, so left alone:
# what changes the bytes (-r, --compressed, -i, -d), the route (-x, --resolve, --interface) or the trust (-k, --cacert, -E), what a
# sidecar cannot send on (-A, -e, --digest), and a wish it would not honour (--limit-rate).
_CURL = flag_table(
    skip="-s --silent -S --show-error -L --location -f --fail --fail-with-body --fail-early -N --no-buffer -# --progress-bar -v --verbose "
    "--no-progress-meter -4 --ipv4 -6 --ipv6 --http1.1 --http2 -q --disable --retry-connrefused --retry-all-errors --tcp-nodelay "
    "--tcp-fastopen --no-keepalive --basic -G --get --tlsv1.2 --tlsv1.3",
    skip_value="--retry --retry-delay --retry-max-time --connect-timeout -m --max-time -Y --speed-limit -y --speed-time --keepalive-time "
    "--max-redirs --expect100-timeout --happy-eyeballs-timeout-ms",
    keep={
        "-H --header": "header=", "-u --user": "user=", "-b --cookie": "cookie=", "--oauth2-bearer": "bearer=", "-X --request": "method=",
        "-o --output": "output=", "--url": "url=", "-g --globoff": "globoff",
    },
)  # fmt: skip
_WGET = flag_table(
    skip="-q --quiet -nv --no-verbose --retry-connrefused -c --continue --show-progress --no-hsts --no-cookies -4 -6 --inet4-only "
    "--inet6-only --auth-no-challenge",
    skip_value="-t --tries --waitretry -w --wait --read-timeout -T --timeout --connect-timeout --dns-timeout --max-redirect --progress",
    keep={
        "-O --output-document": "output=",
        "--header": "header=",
        "--user --http-user": "user=",
        "--password --http-password": "password=",
    },
)
# Request headers that change no byte of a shard: what a default request says anyway, and wishes to caches on the way.
_IDLE_HEADERS = {
    "accept": ("*/*", "application/octet-stream", "application/x-tar"), "accept-encoding": ("identity",), "connection": None,
    "cache-control": None, "pragma": None,
}  # fmt: skip
_IPV6_HOST = re.compile(r"[a-z]+://([^/@]*@)?\[[0-9a-f:.]+\]", re.IGNORECASE)  # curl tells it from a range, and so must we
_AFTER_HOST = re.compile(r"[/?#]")
_GLOB = re.compile(r"\\([][{}])|\{([^][{},\\]+)\}|[][{}]")


def curl(command: Command) -> tuple[ShardUrl, tuple[tuple[str, str], ...]]:
    words = sort_words(command.words[1:], _CURL, clusters=True)
    if any(output not in STDOUT for output in words.every("output")) or any(method != "GET" for method in words.every("method")):
        raise NotRewritten
    url = _one_url(words.operands + words.every("url"), "curl needs a URL: pipe:curl -s -L https://host/shard.tar")
    url = url if "globoff" in words.values else unglobbed(url)
    return _http(url), _credentials(url, words)


def wget(command: Command) -> tuple[ShardUrl, tuple[tuple[str, str], ...]]:
    words = sort_words(command.words[1:], _WGET, clusters=True)
    url = _one_url(words.operands, "wget needs a URL: pipe:wget -q -O - https://host/shard.tar")
    if words.last("output") is None:
        raise InvalidShardUrl("wget prints a file only with -O -: pipe:wget -q -O - https://host/shard.tar")
    if words.last("output") not in STDOUT:
        raise NotRewritten
    return _http(url), _credentials(url, words)


def userinfo_header(url: str) -> tuple[tuple[str, str], ...]:
    """The Authorization header that curl makes from ``user:password@`` in an http URL; empty without one."""
    authority = _AFTER_HOST.split(url.partition("://")[2], maxsplit=1)[0]
    userinfo, at, _ = authority.rpartition("@")
    user, _, password = userinfo.partition(":")
    return (_basic(f"{unquote(user)}:{unquote(password)}"),) if at else ()


def unglobbed(url: str) -> str:
    """``url`` as curl reads it where ``{one}`` offers a single alternative; several alternatives would be several requests.

    Users meet this when doubled braces leave ``-{0000}.tar`` after expansion. Raises ``NotRewritten``.
    """
    host = _IPV6_HOST.match(url)
    start = host.end() if host else 0
    return url[:start] + _GLOB.sub(_alternative, url[start:])


def _alternative(match: re.Match[str]) -> str:
    chosen = match.group(1) or match.group(2)
    if chosen is None:
        raise NotRewritten
    return chosen


def _one_url(urls: list[str], mend: str) -> str:
    if not urls:
        raise InvalidShardUrl(mend)
    if len(urls) > 1:
        raise NotRewritten  # their bodies would follow each other
    return urls[0]


def _http(url: str) -> ShardUrl:
    if not re.match("https?://", url, re.IGNORECASE):
        raise NotRewritten  # curl guesses a scheme, and knows ftp and others
    try:
        return parse_origin_url(url)
    except InvalidShardUrl:
        raise NotRewritten from None  # curl may still cope


def _credentials(url: str, words: Words) -> tuple[tuple[str, str], ...]:
    """The headers that travel, in the order given; a written Authorization or Cookie outweighs one that would be made."""
    headers = [header for text in words.every("header") for header in _header(text)]
    written = {name.lower() for name, _ in headers}
    cookies = [_cookie(text) for text in words.every("cookie")]
    if cookies and "cookie" not in written:
        headers.append(("Cookie", ";".join(cookies)))  # one header, as curl makes of them
    if "authorization" not in written:
        headers += _authorization(url, words)
    return tuple(headers)


def _authorization(url: str, words: Words) -> Iterable[tuple[str, str]]:
    bearer, user, password = words.last("bearer"), words.last("user"), words.last("password")
    if bearer is not None:
        return [("Authorization", f"Bearer {bearer}")]
    if user is None:
        return userinfo_header(url)
    if password is None and ":" not in user:
        raise NotRewritten  # would ask for the password
    return [_basic(user if password is None else f"{user}:{password}")]


def _basic(pair: str) -> tuple[str, str]:
    return "Authorization", "Basic " + base64.b64encode(pair.encode("utf-8", "surrogateescape")).decode("ascii")


def _header(text: str) -> list[tuple[str, str]]:
    name, colon, value = (part.strip() for part in text.partition(":"))
    lower = name.lower()
    if not colon or not value or not re.fullmatch(r"[A-Za-z0-9-]+", name) or not value.isprintable():
        raise NotRewritten  # "Name;" and "Name:" blank or remove a header, "@file" reads one
    if lower in ("authorization", "cookie") or (lower.startswith("x-") and not lower.startswith("x-forwarded-")):
        return [(name, value)]
    if lower in _IDLE_HEADERS and (_IDLE_HEADERS[lower] is None or value.lower() in (_IDLE_HEADERS[lower] or ())):
        return []
    raise NotRewritten  # a Range, a Referer: the origin's answer may depend on it, and it does not travel


def _cookie(text: str) -> str:
    if "=" not in text or not text.isprintable():
        raise NotRewritten  # a file of cookies
    return text
