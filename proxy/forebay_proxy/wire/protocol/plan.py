"""A plan on the wire: which shards a reader will open, in order, as JSON, as NDJSON, or as indices into a brace pattern; and who
that is, ``job/rank/worker/opener``, as paths, headers and status pages name it. Pure.

One bad entry spoils the whole body: the error names the first, and nothing is taken.
"""

from __future__ import annotations

import json
import re
from array import array
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Iterable, Iterator, NamedTuple, Optional, Sequence
from urllib.parse import parse_qsl, quote, unquote, urlencode

from forebay_proxy.wire.urls.patterns import InvalidPattern, Pattern, check_parts, parse_pattern
from forebay_proxy.wire.urls.shard_url import MAX_URL_BYTES, InvalidShardUrl, parse_origin_url

__all__ = [
    "MAX_BODY_BYTES", "NDJSON", "Encoded", "InvalidPlan", "InvalidReader", "PlanBody", "PlanTooLong", "ReaderName", "decode", "encode",
]  # fmt: skip


_MAX_PART = 128


class InvalidReader(ValueError):
    """The text names no reader; the message says what would be right."""


@dataclass(frozen=True)
class ReaderName:
    """One consumer. ``opener`` is ``pid.n``: train and validation loaders of one process must not overwrite each other.

    Each part is 1 to 128 printable characters without a slash, and not ``.`` or ``..``, which a client would remove from a path.
    Raises ``InvalidReader`` otherwise.
    """

    job: str
    rank: str
    worker: str
    opener: str

    def __post_init__(self) -> None:
        for name in ("job", "rank", "worker", "opener"):
            part = getattr(self, name)
            if not 1 <= len(part) <= _MAX_PART or not part.isprintable() or "/" in part or part in (".", ".."):
                raise InvalidReader(f"the reader's {name} must be 1 to {_MAX_PART} printable characters without '/'")

    @classmethod
    def parse(cls, text: str) -> ReaderName:
        """The reader named by ``job/rank/worker/opener``, each part percent-encoded as ``str()`` writes it."""
        parts = text.split("/")
        if len(parts) != 4:
            raise InvalidReader("a reader is named job/rank/worker/opener, as train-7/0/3/4711.1")
        return cls(*(unquote(part) for part in parts))

    def __str__(self) -> str:
        """ASCII, fit for a header and for a path."""
        return "/".join([quote(part, safe="@:+,=") for part in (self.job, self.rank, self.worker, self.opener)])


MAX_BODY_BYTES = 64 << 20  # the server answers 413 above it; 585,270 URLs of 100 bytes fit
MAX_PLAN_BYTES = 512 << 20  # the URLs of one plan together; a short pattern with many indices could name more
NDJSON = "application/x-ndjson"
_JSON = "application/json"
_JSON_LIMIT = 1 << 20  # a JSON text is parsed in one go, and no other thread runs meanwhile; lines are not
_INDICES_LIMIT = 16 << 20  # two million numbers, 0.3 s; those of the largest public set together take 0.1 s
_LINES_BYTES = 1 << 16  # parsed at once
_KNOWN_PATTERNS = 16  # each of a job's readers brings the same one
_KNOWN_TEXT = 1 << 14  # of which each character takes some 64 bytes
_FIELDS = ("shards", "epoch", "set", "indices", "at")
_MAX_WHOLE = (1 << 53) - 1
_MAX_SET = 1 << 16

# Nearly every entry: nothing to decode, nothing to decide. The others go through the parser, which is ten times slower.
_PLAIN = re.compile(
    r"(?:s3|gs)://[A-Za-z0-9][A-Za-z0-9._-]{0,254}(?:/(?!\.)[A-Za-z0-9._=:@,+-]+)+"
    r"|https?://(?=[^/]{1,253}/)[a-z](?:[a-z0-9-]{0,60}[a-z0-9])?(?:\.[a-z](?:[a-z0-9-]{0,60}[a-z0-9])?)*(?:/(?!\.)[A-Za-z0-9._=:@,+-]+)+"
)


class InvalidPlan(ValueError):
    """The body is no plan. The message names the first bad entry and its index, and says what would be right."""


class PlanTooLong(InvalidPlan):
    """It would have to be parsed in one go."""


@dataclass(frozen=True)
class PlanBody:
    """``shards`` are origin URLs in the order of use; ``epoch`` and ``set`` (a pattern or a name) are None where not told.

    ``at`` is how many entries the reader announced before the first one of this message, over its whole life; None where not told.
    With ``indices`` the plan is those of the texts that the pattern ``set`` stands for, and ``shards`` is empty.
    """

    shards: list[str]
    epoch: Optional[int] = None
    set: Optional[str] = None
    at: Optional[int] = None
    indices: Optional[array[int]] = None
    size: int = field(default=0, compare=False)  # characters of all shards


class Encoded(NamedTuple):
    """A request body with its content type and the query (without "?") that goes with it."""

    content_type: str
    body: bytes
    query: str


def encode(
    shards: Sequence[str] = (),
    *,
    epoch: Optional[int] = None,
    set: Optional[str] = None,
    indices: Optional[Sequence[int]] = None,
    at: Optional[int] = None,
) -> Encoded:
    """A plan as the smallest of the three forms that carries it: ``indices`` into ``set``, else JSON, above 1 MiB NDJSON."""
    named = {name: value for name, value in (("epoch", epoch), ("set", set), ("at", at)) if value is not None}
    if indices is not None:
        return Encoded(_JSON, _compact({**named, "indices": list(indices)}), "")
    body = _compact({**named, "shards": list(shards)})
    if len(body) <= _JSON_LIMIT:
        return Encoded(_JSON, body, "")
    return Encoded(NDJSON, b"".join(_compact(shard) + b"\n" for shard in shards), urlencode(named))


def decode(content_type: str, body: bytes, query: str = "", *, expand: bool = True) -> PlanBody:
    """The plan in ``body``. ``query`` (``epoch=3&set=…``) speaks for NDJSON, whose lines have no room for it.

    ``expand=False`` leaves indices what they are (checked against the pattern; its texts are not), instead of naming every URL.

    Anything that is not NDJSON is read as JSON, whatever it is called: ``curl -d`` calls it a form. Raises ``InvalidPlan``.
    """
    if content_type.partition(";")[0].strip().lower() == NDJSON:
        return _from_lines(body, query)
    limit = _INDICES_LIMIT if b'"indices"' in body else _JSON_LIMIT
    if len(body) > limit:
        raise PlanTooLong(f"a JSON body of {len(body)} bytes, and {limit} are taken")
    content = _parsed(body, "the body")
    if not isinstance(content, dict):
        raise InvalidPlan('the body is not a JSON object; write {"shards": ["s3://bucket/00000.tar", …]}')
    unknown = next((name for name in content if name not in _FIELDS), None)
    if unknown is not None:
        raise InvalidPlan(f"unknown field {unknown[:40]!r}; known are {', '.join(_FIELDS)}")
    named, epoch, at = _set(content.get("set")), _whole("epoch", content.get("epoch")), _whole("at", content.get("at"))
    if "indices" not in content:
        shards, size = _checked(_shards(content))
        return PlanBody(shards, epoch, named, at, size=size)
    pattern, indices = _indices(content, named)
    if not expand:
        return PlanBody([], epoch, named, at, indices)
    many = len(indices) > pattern.count // 4
    shards, size = _checked(map(_listed(pattern, named or "").__getitem__ if many else pattern.at, indices))
    return PlanBody(shards, epoch, named, at, size=size)


def _from_lines(body: bytes, query: str) -> PlanBody:
    fields = dict(parse_qsl(query, keep_blank_values=True))
    epoch, at = (_whole(name, _number(fields.get(name))) for name in ("epoch", "at"))
    shards, size = _checked(_lines(body))
    return PlanBody(shards, epoch, _set(fields.get("set")), at, size=size)


def _number(text: Optional[str]) -> Any:
    """A query's number; a text that is no number stays as it is."""
    return int(text) if text is not None and re.fullmatch("[0-9]{1,16}", text) else text


def _lines(body: bytes) -> Iterator[Any]:
    """The JSON values of the lines: hundreds at once; line by line, which is ten times slower, only to name a bad line."""
    count = start = 0
    while start < len(body):
        end = body.find(b"\n", start + _LINES_BYTES) + 1 or len(body)
        lines = [line for line in body[start:end].split(b"\n") if line.strip()]
        start = end
        try:
            entries = json.loads(b"[" + b",\n".join(lines) + b"]")  # a newline ends no string, so no two lines melt into one
        except (ValueError, RecursionError):
            entries = None
        if not isinstance(entries, list) or len(entries) != len(lines):
            entries = [_parsed(line, f"entry {index}") for index, line in enumerate(lines, count)]
        yield from entries
        count += len(lines)


def _shards(content: dict[str, Any]) -> list[Any]:
    shards = content.get("shards")
    if not isinstance(shards, list):
        raise InvalidPlan('the field shards is missing or not a list; write {"shards": ["s3://bucket/00000.tar", …]}')
    return shards


def _indices(content: dict[str, Any], named: Optional[str]) -> tuple[Pattern, array[int]]:
    """(the pattern ``named``, the indices into it that have a text there)."""
    if named is None or "shards" in content:
        raise InvalidPlan('indices point into a pattern: write {"set": "s3://bucket/{000..999}.tar", "indices": [17, 3]}')
    try:
        check_parts(named)
        pattern = _known_pattern(named) if len(named) <= _KNOWN_TEXT else parse_pattern(named)
    except InvalidPattern as error:
        raise InvalidPlan(f"set: {error}") from None
    found = content["indices"]
    if not isinstance(found, list):
        raise InvalidPlan("the field indices is not a list of whole numbers")
    # Ten times quicker than one by one.
    if found and ({*map(type, found)} != {int} or min(found) < 0 or max(found) >= pattern.count):
        bad = next(place for place, index in enumerate(found) if type(index) is not int or not 0 <= index < pattern.count)
        raise InvalidPlan(f"indices[{bad}] is not a whole number from 0 to {pattern.count - 1}")
    return pattern, array("I", found)


_known_pattern = lru_cache(_KNOWN_PATTERNS)(parse_pattern)


def _listed(pattern: Pattern, template: str) -> list[str]:
    """All texts of ``pattern``: quicker than one by one where many are needed."""
    if pattern.count * len(template) > MAX_PLAN_BYTES:  # no text is longer than its template
        raise InvalidPlan(f"set: the pattern stands for more than {MAX_PLAN_BYTES >> 20} MiB of URLs; list the shards in parts (POST)")
    return list(pattern)


def _checked(entries: Iterable[Any]) -> tuple[list[str], int]:
    """The URLs, and how long they are together."""
    shards: list[str] = []
    total = 0
    for index, entry in enumerate(entries):
        if not isinstance(entry, str):
            raise InvalidPlan(f"entry {index} is not a string; write a URL such as s3://bucket/00000.tar")
        if len(entry) > MAX_URL_BYTES or not _PLAIN.fullmatch(entry):
            _refuse_bad_url(index, entry)
        total += len(entry)
        if total > MAX_PLAN_BYTES:
            limit = f"the URLs are longer than {MAX_PLAN_BYTES >> 20} MiB together"
            raise InvalidPlan(f"entry {index}: {limit}; send the plan in parts (POST)")
        shards.append(entry)
    return shards, total


def _refuse_bad_url(index: int, entry: str) -> None:
    try:
        parse_origin_url(entry)
    except InvalidShardUrl as error:
        raise InvalidPlan(f"entry {index}: {error}") from None


def _whole(name: str, value: Any) -> Optional[int]:
    if value is not None and (type(value) is not int or not 0 <= value <= _MAX_WHOLE):
        raise InvalidPlan(f"{name} is not a whole number from 0 to {_MAX_WHOLE}")
    return value


def _set(value: Any) -> Optional[str]:
    if value is not None and (not isinstance(value, str) or not value or len(value) > _MAX_SET or not value.isprintable()):
        raise InvalidPlan(f"set is not a pattern or a name of 1 to {_MAX_SET} printable characters")
    return value


def _parsed(text: bytes, what: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidPlan(f"{what} is nested too deep") from None
    except ValueError as error:
        place = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidPlan(f"{what} is not JSON{place}") from None


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
