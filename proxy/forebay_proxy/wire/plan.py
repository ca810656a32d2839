"""A plan on the wire: which shards a reader will open, in order, as JSON, as NDJSON, or as indices into a brace pattern. Pure.

One bad entry spoils the whole body: the error names the first, and nothing is taken.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Iterable, NamedTuple, Optional, Sequence
from urllib.parse import parse_qsl, urlencode

from forebay_proxy.wire.patterns import InvalidPattern, Pattern, parse_pattern
from forebay_proxy.wire.quoting import MAX_URL_BYTES, InvalidShardUrl
from forebay_proxy.wire.readers import InvalidReader, ReaderName
from forebay_proxy.wire.shard_url import parse_origin_url

__all__ = ["MAX_BODY_BYTES", "NDJSON", "Encoded", "InvalidPlan", "InvalidReader", "PlanBody", "ReaderName", "decode", "encode"]

MAX_BODY_BYTES = 64 << 20  # the server answers 413 above it; 585,270 URLs of 100 bytes fit
MAX_PLAN_BYTES = 512 << 20  # the URLs of one plan together; a short pattern with many indices could name more
NDJSON = "application/x-ndjson"
_JSON = "application/json"
_JSON_LIMIT = 1 << 20  # above it one list would be parsed in one breath; lines can be told apart
_FIELDS = ("shards", "epoch", "set", "indices")
_MAX_EPOCH = (1 << 53) - 1
_MAX_SET = 1 << 16

# Nearly every entry: nothing to decode, nothing to decide. The others go through the parser, which is ten times slower.
_PLAIN = re.compile(
    r"(?:s3|gs)://[A-Za-z0-9][A-Za-z0-9._-]{0,254}(?:/(?!\.)[A-Za-z0-9._=:@,+-]+)+"
    r"|https?://(?=[^/]{1,253}/)[a-z](?:[a-z0-9-]{0,60}[a-z0-9])?(?:\.[a-z](?:[a-z0-9-]{0,60}[a-z0-9])?)*(?:/(?!\.)[A-Za-z0-9._=:@,+-]+)+"
)


class InvalidPlan(ValueError):
    """The body is no plan. The message names the first bad entry and its index, and says what would be right."""


@dataclass(frozen=True)
class PlanBody:
    """``shards`` are origin URLs in the order of use; ``epoch`` and ``set`` (a pattern or a name) are None where not told."""

    shards: list[str]
    epoch: Optional[int] = None
    set: Optional[str] = None


class Encoded(NamedTuple):
    """A request body with its content type and the query (without "?") that goes with it."""

    content_type: str
    body: bytes
    query: str


def encode(
    shards: Sequence[str] = (), *, epoch: Optional[int] = None, set: Optional[str] = None, indices: Optional[Sequence[int]] = None
) -> Encoded:
    """A plan as the smallest of the three forms that carries it: ``indices`` into ``set``, else JSON, above 1 MiB NDJSON."""
    named = {name: value for name, value in (("epoch", epoch), ("set", set)) if value is not None}
    if indices is not None:
        return Encoded(_JSON, _compact({**named, "indices": list(indices)}), "")
    body = _compact({**named, "shards": list(shards)})
    if len(body) <= _JSON_LIMIT:
        return Encoded(_JSON, body, "")
    return Encoded(NDJSON, b"".join(_compact(shard) + b"\n" for shard in shards), urlencode(named))


def decode(content_type: str, body: bytes, query: str = "") -> PlanBody:
    """The plan in ``body``. ``query`` (``epoch=3&set=…``) speaks for NDJSON, whose lines have no room for it.

    Anything that is not NDJSON is read as JSON, whatever it is called: ``curl -d`` calls it a form. Raises ``InvalidPlan``.
    """
    if content_type.partition(";")[0].strip().lower() == NDJSON:
        return _from_lines(body, query)
    content = _parsed(body, "the body")
    if not isinstance(content, dict):
        raise InvalidPlan('the body is not a JSON object; write {"shards": ["s3://bucket/00000.tar", …]}')
    unknown = next((name for name in content if name not in _FIELDS), None)
    if unknown is not None:
        raise InvalidPlan(f"unknown field {unknown[:40]!r}; known are {', '.join(_FIELDS)}")
    named = _set(content.get("set"))
    return PlanBody(_shards(content, named), _epoch(content.get("epoch")), named)


def _from_lines(body: bytes, query: str) -> PlanBody:
    fields = dict(parse_qsl(query, keep_blank_values=True))
    epoch = fields.get("epoch")
    if epoch is not None and not re.fullmatch("[0-9]{1,16}", epoch):
        raise InvalidPlan(f"epoch is not a whole number from 0 to {_MAX_EPOCH}")
    return PlanBody(_checked(_lines(body)), _epoch(None if epoch is None else int(epoch)), _set(fields.get("set")))


def _lines(body: bytes) -> Iterable[Any]:
    """The JSON values of the lines: all in one breath; one by one, ten times slower, only to name a bad one."""
    lines = [line for line in body.split(b"\n") if line.strip()]
    try:
        entries = json.loads(b"[" + b",\n".join(lines) + b"]")  # a newline ends no string, so no two lines melt into one
    except (ValueError, RecursionError):
        entries = None
    if isinstance(entries, list) and len(entries) == len(lines):
        return entries
    return (_parsed(line, f"entry {index}") for index, line in enumerate(lines))


def _shards(content: dict[str, Any], named: Optional[str]) -> list[str]:
    if "indices" in content:
        if named is None or "shards" in content:
            raise InvalidPlan('indices point into a pattern: write {"set": "s3://bucket/{000..999}.tar", "indices": [17, 3]}')
        return _picked(named, content["indices"])
    if not isinstance(content.get("shards"), list):
        raise InvalidPlan('the field shards is missing or not a list; write {"shards": ["s3://bucket/00000.tar", …]}')
    return _checked(content["shards"])


def _picked(template: str, indices: Any) -> list[str]:
    """The entries of ``template`` at ``indices``."""
    try:
        pattern = parse_pattern(template)
    except InvalidPattern as error:
        raise InvalidPlan(f"set: {error}") from None
    if not isinstance(indices, list):
        raise InvalidPlan("the field indices is not a list of whole numbers")
    at = _listed(pattern, template).__getitem__ if len(indices) > pattern.count // 4 else pattern.at

    def texts() -> Iterable[str]:
        for position, index in enumerate(indices):
            if type(index) is not int or not 0 <= index < pattern.count:
                raise InvalidPlan(f"indices[{position}] is not a whole number from 0 to {pattern.count - 1}")
            yield at(index)

    return _checked(texts())


def _listed(pattern: Pattern, template: str) -> list[str]:
    """All texts of ``pattern``, which is quicker than naming many of them one by one."""
    if pattern.count * len(template) > MAX_PLAN_BYTES:  # no text is longer than its template
        raise InvalidPlan(f"set: the pattern stands for more than {MAX_PLAN_BYTES >> 20} MiB of URLs; list the shards in parts (POST)")
    return list(pattern)


def _checked(entries: Iterable[Any]) -> list[str]:
    shards: list[str] = []
    total = 0
    for index, entry in enumerate(entries):
        if not isinstance(entry, str):
            raise InvalidPlan(f"entry {index} is not a string; write a URL such as s3://bucket/00000.tar")
        if len(entry) > MAX_URL_BYTES or not _PLAIN.fullmatch(entry):
            _refuse_bad_url(index, entry)
        total += len(entry)
        if total > MAX_PLAN_BYTES:
            raise InvalidPlan(f"entry {index}: the URLs are longer than {MAX_PLAN_BYTES >> 20} MiB together; send the plan in parts (POST)")
        shards.append(entry)
    return shards


def _refuse_bad_url(index: int, entry: str) -> None:
    try:
        parse_origin_url(entry)
    except InvalidShardUrl as error:
        raise InvalidPlan(f"entry {index}: {error}") from None


def _epoch(value: Any) -> Optional[int]:
    if value is not None and (type(value) is not int or not 0 <= value <= _MAX_EPOCH):
        raise InvalidPlan(f"epoch is not a whole number from 0 to {_MAX_EPOCH}")
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
