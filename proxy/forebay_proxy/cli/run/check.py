"""What becomes of one URL in each way in. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from forebay_proxy.cli.run.environment import is_secured, rewrite_variables
from forebay_proxy.core.logs import scrubbed
from forebay_proxy.wire.commands.gopen_rules import rewritten
from forebay_proxy.wire.commands.sources import Source, parse_source, why_left
from forebay_proxy.wire.urls.patterns import InvalidPattern, parse_pattern
from forebay_proxy.wire.urls.quoting import InvalidShardUrl
from forebay_proxy.wire.urls.shard_url import proxy_url

__all__ = ["check_rows"]

# Which no look at an environment can find out, and it ends every shard: "rewrite_url: unsafe_gopen is False".
_UNLESS_SECURED = "; refused by WebDataset where the program sets webdataset.utils.enforce_security"


def check_rows(text: str, base: str, environ: Mapping[str, str]) -> list[tuple[str, ...]]:
    """(way in, what happens) for ``text`` as a person writes it, with a sidecar at ``base``; of a brace pattern, for its first URL."""
    try:
        pattern = parse_pattern(text)  # WebDataset expands before it opens: no rule ever sees a brace
    except InvalidPattern as error:
        return _rows("it", *2 * (f"refused by WebDataset: {error}",))
    if pattern.count == 0:
        return _rows("it", *2 * ("nothing: the pattern stands for no URL",))
    first, rules = pattern.at(0), rewrite_variables(base, environ)["GOPEN_REWRITE"]
    of_what = "it" if pattern.count == 1 else f"the first of {pattern.count}"
    secured = is_secured(environ)
    return _rows(of_what, _by_rewriting(first, base, rules, secured=secured), _in_code(first, base, secured=secured))


def _rows(of_what: str, by_rule: str, in_code: str) -> list[tuple[str, ...]]:
    return [
        ("way in", f"what becomes of {of_what}"),
        ('eval "$(forebay env)"', by_rule),
        ("forebay run -- CMD", in_code),  # webdataset is taken over; a Python that heeds no PYTHONPATH goes by the rules
        ("import forebay_loader", in_code),
    ]


def _by_rewriting(text: str, base: str, rules: str, *, secured: bool) -> str:
    if secured:
        return "refused by WebDataset: WDS_SECURE is set, and under it GOPEN_REWRITE ends every opening"
    changed = rewritten(rules, text)
    if changed == text:
        return "left to WebDataset: no rewrite rule matches"
    if not changed.startswith(base + "/"):
        return f"rewritten by a rule of your own: {_shown(changed)}"
    source = _understood(text)
    lost = "; its headers do not travel this way" if isinstance(source, Source) and source.headers else ""
    return f"through Forebay: {_shown(changed, base)}{lost}{_UNLESS_SECURED}"


def _in_code(text: str, base: str, *, secured: bool) -> str:
    if secured and text.startswith("pipe:"):
        return "refused by WebDataset: WDS_SECURE is set, and under it no command is run or read"
    source = _understood(text)
    if source is None:
        return f"left to WebDataset: {why_left(text) or 'not a URL or a command that Forebay knows'}"
    if isinstance(source, str):
        return f"refused: {source}"
    if source.url.scheme == "file" and not text.startswith("pipe:"):
        return "read directly, past Forebay: for a NAS write 'pipe:cat /path', and start the sidecar with a --file-root above it"
    rooted = "; only below a --file-root of the sidecar's" if source.url.scheme == "file" else ""
    return f"through Forebay: {_shown(proxy_url(base, source.url), base)}" + ("; its headers travel with it" if source.headers else rooted)


def _shown(url: str, base: str = "") -> str:
    """``url`` without a query that may sign it; the options of our own s3 targets hold no secret."""
    if base and url.startswith(f"{base}/s3/"):
        return url
    plain = scrubbed(url)
    return plain if plain == url else f"{plain}?…"


def _understood(text: str) -> Source | str | None:
    """The source; None if the URL is left alone; or the fault of the URL, in words."""
    try:
        return parse_source(text)
    except InvalidShardUrl as error:
        return str(error)
