"""Environment only: rules for ``GOPEN_REWRITE``, with which WebDataset itself sends what it opens through Forebay. Pure.

WebDataset splits the value at ``;``, each rule at its first ``=``, and replaces the first rule that matches at the start of the URL. So a
key can hold neither character (``\\x3d`` stands for ``=``), a rule either matches a whole URL or leaves it alone, and every form a rule
claims must mean the same to Forebay as to the tool it replaces. What no rule claims keeps working as before:

- commands with headers, credentials in the URL, or options that the tables of ``curl.py`` and ``pipe_tools.py`` do not know: nothing but
  a URL can travel;
- keys with characters that a shell, curl or an URL would read differently (``%``, ``?``, spaces, quotes, ``*``, segments of dots);
- variables before a command, relative paths, other operators than ``|| true``, ``2>/dev/null``, ``< /dev/null`` and ``| pv``;
- our own address.

The options of aws and s5cmd become the query. A group that did not match leaves its value empty there (``?endpoint=&profile=p``), which the
proxy reads as absent: so one rule serves every combination.
"""

from __future__ import annotations

import re
from typing import Iterator, NamedTuple, Tuple
from urllib.parse import urlsplit

__all__ = ["gopen_rewrite", "rewritten", "without_ours"]

_OURS = "(?#forebay)"  # begins each key of ours, so that a second eval replaces the rules of the first
# No quote stays open: an odd number of either kind is something only a shell can make sense of.
_PIPE = "".join(rf"(?![^{quote}]*{quote}(?:[^{quote}]*{quote}[^{quote}]*{quote})*[^{quote}]*$)" for quote in "'\"") + "pipe: *"
_END = r"(?:(?: +2>| *<) */dev/null)*(?: *[|] *pv(?: -[pteraAnbfqWlTc]+)*)?(?: *[|][|] *(?:true|:))? *\Z"
_KEY = r"[A-Za-z0-9._~/:@+,\x3d-]+"
_BUCKET = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NO_DOTS = r"(?!\S*/\.\.?(?:[/'\"? ]|$))"  # curl would fold a/../b before we see it
_OBJECT = rf"({_BUCKET}/{_KEY})"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"  # RFC 1035: a longer one is no host name, and our parser says so
_HOST = rf"(?:(?:{_LABEL}\.)*(?![0-9]){_LABEL}|(?:[0-9]{{1,3}}\.){{3}}[0-9]{{1,3}})(?::[0-9]{{1,5}})?"
_PATH = r"/(?:[A-Za-z0-9._~/:@+,\x3d-]|%[0-9A-Fa-f]{2})*"
_QUERY = r"(?:[?](?:[A-Za-z0-9._~/:@+,&?\x3d-]|%[0-9A-Fa-f]{2})*)?"
_QUOTE = "[\"']?"


_Rule = Tuple[str, str]  # what it matches, and the target below our address


def gopen_rewrite(base: str, keep: str = "") -> str:
    """The value of ``GOPEN_REWRITE`` for the Forebay at ``base`` ("http://127.0.0.1:7070").

    ``keep`` is the value found; it stays in front, less rules of ours from before. Files keep their way, as the sidecar reads none unless
    it is told where. Raises ``ValueError`` for a base that no rule can hold.
    """
    if not re.fullmatch(r"https?://[A-Za-z0-9.:-]+", base.rstrip("/")):
        raise ValueError("base is not a plain URL such as http://127.0.0.1:7070")
    base = base.rstrip("/")
    kept = [rule for rule in keep.split(";") if rule.strip() and not rule.startswith(_OURS)]
    return ";".join([*kept, *(f"{_OURS}{key}={base}{target}" for key, target in _rules(base))])


def without_ours(value: str) -> str:
    """``GOPEN_REWRITE=value`` without the rules that were made here; ``value`` itself where there are none."""
    rules = value.split(";")
    others = [rule for rule in rules if not rule.startswith(_OURS)]
    return value if len(others) == len(rules) else ";".join(others)


def rewritten(value: str, url: str) -> str:
    """``url`` as WebDataset would open it under ``GOPEN_REWRITE=value`` (``gopen.rewrite_url``). Raises ``ValueError``, ``re.error``."""
    for rule in value.split(";") if value else ():
        key, equals, target = rule.partition("=")
        if not equals:
            raise ValueError("a rule of GOPEN_REWRITE has no '='")
        changed = re.sub("^" + key, target, url)
        if changed != url:
            return changed
    return url


def _rules(base: str) -> Iterator[_Rule]:
    yield from _plain_urls(base)
    yield from _curl_like(base)
    for tool in _S3_TOOLS:
        yield from _s3_command(tool)
    yield rf"{_PIPE}s3cmd{_switches(_S3CMD)} +get{_switches(_S3CMD)} +{_quoted('s3')}{_switches(_S3CMD)} +-{_END}", r"/s3/\1"
    yield rf"{_PIPE}gsutil(?: +-[mq])* +cat +{_quoted('gs')}{_END}", r"/gs/\1"
    yield rf"{_PIPE}gcloud(?: +(?:alpha|beta))? +storage +cat +{_quoted('gs')}{_END}", r"/gs/\1"


def _plain_urls(base: str) -> Iterator[_Rule]:
    yield rf"(https?)://{_elsewhere(base)}{_NO_DOTS}({_HOST}{_PATH}{_QUERY})\Z", r"/\1/\2"
    options = r"(?:[?](?:endpoint|profile|region|unsigned|requester_pays|versionId)\x3d[A-Za-z0-9._~/:%&\x3d-]*)?"
    yield rf"s3://{_NO_DOTS}({_BUCKET}/{_KEY}{options})\Z", r"/s3/\1"
    yield rf"gs://{_NO_DOTS}{_OBJECT}\Z", r"/gs/\1"
    yield rf"hf://(?!buckets/){_NO_DOTS}{_OBJECT}\Z", r"/hf/\1"  # storage buckets are not read


_CURL = (
    "-[sSLfNg46]+|--(?:silent|show-error|location|fail|fail-with-body|no-buffer|ipv4|ipv6|http1[.]1|retry-connrefused|retry-all-errors"
    "|no-progress-meter)|(?:--retry|--retry-delay|--retry-max-time|--connect-timeout|--max-time|-m) +[0-9]+|-o *-"
)
_WGET = (
    "-q|-nv|-c|--quiet|--no-verbose|--continue|--retry-connrefused|(?:-t|-T) *[0-9]+"
    r"|--(?:tries|timeout|waitretry|read-timeout|connect-timeout)[ \x3d][0-9]+"
)
_TO_STDOUT = r"(?:-q?O *-|--output-document[ \x3d]-)"
_S3CMD = "-q|-f|--quiet|--force|--no-progress"


def _curl_like(base: str) -> Iterator[_Rule]:
    # Without quotes a shell ends the command at "&"; with them the same quote must close.
    url = rf"([\"'])?(https?)://(?(1)|(?!\S*&)){_elsewhere(base)}{_NO_DOTS}({_HOST}{_PATH}{_QUERY})(?(1)\1)"
    curl, wget = _switches(_CURL), _switches(_WGET)
    yield rf"{_PIPE}curl{curl} +{url}{curl}{_END}", r"/\2/\3"
    yield rf"{_PIPE}wget{wget} +{_TO_STDOUT}{wget} +{url}{wget}{_END}", r"/\2/\3"
    yield rf"{_PIPE}wget{wget} +{url}{wget} +{_TO_STDOUT}{wget}{_END}", r"/\2/\3"


class _Tool(NamedTuple):
    """``start``, then ``verbs``, the object, and ``target``, with options in every gap; ``idle`` ones change nothing."""

    start: str
    verbs: tuple[str, ...]
    target: str
    idle: str
    region: str = "(?!)()"  # a group that never matches, so that every tool has four

    def line(self, options: str) -> str:
        head = self.start + "".join(options + verb for verb in self.verbs)
        return f"{head}{options} +{_quoted('s3')}{options}{self.target + options if self.target else ''}{_END}"

    def query(self) -> str:
        """The replacement for a ``line`` of four groups a gap: the object, then each option from whichever gap held it."""
        before = len(self.verbs) + 1
        place = 4 * before + 1
        groups = [number for number in range(1, 4 * (before + 1 + bool(self.target)) + 2) if number != place]
        texts = ("".join(f"\\g<{number}>" for number in groups[option::4]) for option in range(4))
        names = ("endpoint", "profile", "region", "requester_pays")
        return f"/s3/\\g<{place}>?" + "&".join(f"{name}={text}" for name, text in zip(names, texts))  # noqa: B905  # not in 3.9


_S3_TOOLS = (
    _Tool(
        _PIPE + "aws",
        (" +s3", " +cp"),
        " +-",
        "--(?:quiet|only-show-errors|no-progress|no-paginate|no-cli-pager)|--cli-(?:read|connect)-timeout[ \\x3d][0-9]+",
        r"--region[ \x3d]([a-z0-9-]+)",
    ),
    _Tool(_PIPE + "s5cmd", (" +cat",), "", "(?:-r|--retry-count|--numworkers|-c|--concurrency|-p|--part-size|--log)[ \\x3d][A-Za-z0-9]+"),
)


def _s3_command(tool: _Tool) -> Iterator[_Rule]:
    """Three rules: no option that matters, such options, and such options with --no-sign-request."""
    yield tool.line(_switches(tool.idle)), r"/s3/\1"
    options = (
        rf"{tool.idle}|--endpoint-url[ \x3d]{_QUOTE}(https?://{_HOST}(?:/[A-Za-z0-9._~/-]*)?){_QUOTE}"
        rf"|--profile[ \x3d]([A-Za-z0-9._-]+)|{tool.region}|--request-payer[ \x3d](requester)"
    )
    once = "".join(rf"(?!.*{name}.*{name})" for name in ("--endpoint-url", "--profile", "--region", "--request-payer"))
    yield once + tool.line(_switches(options)), tool.query()
    yield once + tool.line(_switches(options + "|--no-sign-request")), tool.query() + "&unsigned=1"


def _switches(names: str) -> str:
    return f"(?: +(?:{names}))*"


def _quoted(scheme: str) -> str:
    return rf"{_QUOTE}{scheme}://{_NO_DOTS}{_OBJECT}{_QUOTE}"


def _elsewhere(base: str) -> str:
    """A look ahead that stops at our own address, whatever the machine is called there."""
    parts = urlsplit(base)
    hosts = "|".join(re.escape(host) for host in sorted({str(parts.hostname), "127.0.0.1", "localhost"}))
    port = f":{parts.port}" if parts.port else ""
    return rf"(?!(?:{hosts}){port}(?:[/?'\" ]|$))"
