"""What a command's environment says so that its shards come through a sidecar, for ``run`` and ``env``; and which way a URL goes then."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Mapping
from urllib.parse import urlsplit

import click

from forebay_proxy.cli.client import locate
from forebay_proxy.cli.options import url_option
from forebay_proxy.cli.output import is_terminal, notice, say
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.logs import scrubbed
from forebay_proxy.core.quantities import format_size
from forebay_proxy.wire.commands.gopen_rules import gopen_rewrite, rewritten
from forebay_proxy.wire.commands.sources import Source, parse_source, why_left
from forebay_proxy.wire.protocol.step_runs import run_step, told_apart
from forebay_proxy.wire.urls.patterns import InvalidPattern, parse_pattern
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, proxy_url

__all__ = ["env", "fresh_job", "is_secured", "job_variables", "rewrite_variables", "traps", "ways_in"]


_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NOT_IN_JOB = re.compile(r"[^A-Za-z0-9._-]")


def rewrite_variables(base: str, environ: Mapping[str, str]) -> dict[str, str]:
    """GOPEN_REWRITE and NO_PROXY (both spellings) for a sidecar at ``base``; what ``environ`` says already is kept in front.

    Raises ``ConfigError`` for an address that no rule can hold (an IPv6 one).
    """
    try:
        variables = {"GOPEN_REWRITE": gopen_rewrite(base, keep=environ.get("GOPEN_REWRITE", ""))}
    except ValueError as error:
        raise ConfigError(f"no rewrite rule can name {base}", next_step="let the sidecar listen on 127.0.0.1 or a host name") from error
    hosts = tuple(dict.fromkeys((*_LOOPBACK, urlsplit(base).hostname or _LOOPBACK[0])))
    for name, other in (("NO_PROXY", "no_proxy"), ("no_proxy", "NO_PROXY")):
        variables[name] = _with_hosts(environ.get(name) or environ.get(other, ""), hosts)
    return variables


def job_variables(base: str, environ: Mapping[str, str], job: str) -> dict[str, str]:
    """What ``forebay run`` says to its command of the sidecar and the job; under ``WDS_SECURE`` a rule would only make webdataset fail."""
    variables = {"FOREBAY_URL": base, "FOREBAY_JOB": job, **rewrite_variables(base, environ)}
    if is_secured(environ):
        del variables["GOPEN_REWRITE"]
    return variables


def fresh_job(environ: Mapping[str, str], host: str, pid: int) -> str:
    """A job name nobody else has, except that all tasks of one Slurm step are one job: each of them has a ``forebay run`` of its own.

    The next ``forebay run`` of the same tasks is another job. ``pid``: who holds the name while it lives.
    """
    if step := run_step(environ):
        return "-".join(filter(None, (step, told_apart(step, environ, pid))))
    return f"{_NOT_IN_JOB.sub('-', host)}-{pid}-{secrets.token_hex(4)}"


def traps(environ: Mapping[str, str]) -> list[str]:
    """What in ``environ`` works against a sidecar, each with its mend."""
    found = []
    if is_secured(environ):
        found.append("WDS_SECURE is set: WebDataset refuses GOPEN_REWRITE then; unset WDS_SECURE, or use forebay run or forebay_loader")
    if environ.get("WDS_CACHE"):
        found.append("WDS_CACHE is set: WebDataset keeps a second copy of every shard; unset WDS_CACHE")
    return found


def is_secured(environ: Mapping[str, str]) -> bool:
    """Whether ``environ`` makes WebDataset set ``webdataset.utils.enforce_security`` as it is imported; a program may set that itself."""
    return environ.get("WDS_SECURE", "0") not in ("", "0")


def _with_hosts(value: str, hosts: tuple[str, ...]) -> str:
    present = [part.strip() for part in value.split(",") if part.strip()]
    return value if "*" in present else ",".join([*present, *(host for host in hosts if host not in present)])


_UNLESS_SECURED = "; refused by WebDataset where the program sets webdataset.utils.enforce_security"


def ways_in(text: str, base: str, environ: Mapping[str, str]) -> list[tuple[str, ...]]:
    """(way in, what happens) for ``text`` as a person writes it, with a sidecar at ``base``; of a brace pattern, for its first URL."""
    of_what = "it"
    try:
        pattern = parse_pattern(text)  # WebDataset expands before it opens: no rule ever sees a brace
        by_rule = in_code = "nothing: the pattern stands for no URL"
        if pattern.count:
            first, secured = pattern.at(0), is_secured(environ)
            of_what = "it" if pattern.count == 1 else f"the first of {pattern.count}"
            by_rule = _by_rewriting(first, base, rewrite_variables(base, environ)["GOPEN_REWRITE"], secured=secured)
            in_code = _in_code(first, base, secured=secured)
    except InvalidPattern as error:
        by_rule = in_code = f"refused by WebDataset: {error}"
    return [
        ("way in", f"what becomes of {of_what}"),
        ('eval "$(forebay env)"', by_rule),
        ("forebay run, forebay_loader", in_code),  # a Python that heeds no PYTHONPATH goes by the rules under run, too
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


@click.command()
@url_option
def env(url: str | None) -> int:
    """Print GOPEN_REWRITE and NO_PROXY, so that an unchanged WebDataset reads through the running sidecar.

    \b
    Examples:
      eval "$(forebay env)"          sh, bash, zsh
      forebay env | source           fish

    On a terminal it says in three lines what it would set; else stdout holds nothing but lines for eval. Exit code 2 when no sidecar is
    running. Limits of this way in: no request headers travel, no plan is announced, one curl process a shard, and WebDataset refuses all of
    it to a program that sets its utils.enforce_security; and nobody sees what the training waits for (fb.stalls()). 'forebay run' and
    forebay_loader have fewer.
    """
    sidecar = locate(url, os.environ)
    base = sidecar.address if sidecar.address.startswith("http") else str(sidecar.status()["url"])
    for text in traps(os.environ):
        notice(text)
    variables = rewrite_variables(base, os.environ)
    if is_terminal():
        rules = variables["GOPEN_REWRITE"]
        say(f"GOPEN_REWRITE   {rules.count(';') + 1} rules ({format_size(len(rules))}) that lead WebDataset's shards to {base}")
        say(f"NO_PROXY        {variables['NO_PROXY']} (and no_proxy)")
        say('to set them:    eval "$(forebay env)"')
        return 0
    for name, value in variables.items():
        say(f"export {name}={shlex.quote(value)}")
    return 0
