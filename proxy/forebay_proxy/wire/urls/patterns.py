"""Brace patterns (``{000..999}``, ``{a,b}``, nested) as WebDataset expands them, without the memory: counted and indexed, not listed. Pure.

The grammar is that of the ``braceexpand`` package, quirks included, because a user's pattern has already been read by it: numbers are
padded to the wider end if one end starts with 0, letters run A-Z then a-z, a backslash escapes, ``{x}`` without comma or range stays as it
is, and unbalanced braces are an error. New here are the bounds: a pattern may come from a stranger.
"""

from __future__ import annotations

import re
import string
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, chain, product
from typing import Iterable, Iterator, Optional, Protocol, Sequence

__all__ = [
    "MAX_EXPANSION", "MAX_PARTS", "InvalidPattern", "Pattern", "check_parts", "expand", "index_in", "meant_range", "offers_choice",
    "parse_pattern",
]  # fmt: skip

MAX_EXPANSION = 1 << 22  # URLs in one set; the largest public one has 585,270
MAX_PARTS = 1 << 9  # braces and commas of a pattern that is understood while others wait: 6 ms at most, and public sets have a dozen
_MAX_TEXT = 1 << 16
_MAX_DEPTH = 32  # nested braces; each level reads its text once more
_MAX_DIGITS = 18

_NUMBERS = re.compile(r"^(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?$")
_LETTERS = re.compile(r"^([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?$")
_ALPHABET = string.ascii_uppercase + string.ascii_lowercase
_DIGITS = re.compile(r"-?[0-9]{0,19}")
_NEARLY = re.compile(r"(?:\{|%7B|\[|%5B)(\d{1,18})(?:-|\.{1,3}|:|…|%E2%80%A6)(\d{1,18})(?:\}|%7D|\]|%5D)", re.IGNORECASE)
_ESCAPE = re.compile(r"\\(.)")
_SPECIAL = re.compile(r"\\.?|[{},]", re.DOTALL)  # an escaped character is none of the others


class InvalidPattern(ValueError):
    """The braces do not balance, or the pattern is larger than a plan may be."""


class Pattern(Protocol):
    """The texts a pattern stands for, in order. ``count`` is how many."""

    @property
    def count(self) -> int: ...

    def at(self, index: int) -> str:
        """The text at ``index`` (0 <= index < count), without making the others."""
        ...

    def ends(self, text: str, start: int) -> Iterable[tuple[int, int]]:
        """Where in ``text`` an own text that begins at ``start`` can end, and its index. None where backslashes are in play."""
        ...

    def __iter__(self) -> Iterator[str]: ...


def index_in(pattern: Pattern, text: str) -> Optional[int]:
    """The (first) place of ``text`` in ``pattern``, without listing it; None if it is not there, or the pattern has escapes."""
    return next((index for end, index in pattern.ends(text, 0) if end == len(text)), None)


def meant_range(text: str) -> str:
    """``{000..999}`` where ``text`` holds what was meant as that (``{000-999}``, ``[000..999]``), also percent-encoded; else ""."""
    found = _NEARLY.search(text)
    return f"{{{found[1]}..{found[2]}}}" if found else ""


def expand(text: str, limit: int = MAX_EXPANSION) -> Iterator[str]:
    """The texts that ``text`` stands for, in order. Raises ``InvalidPattern`` at once if they are more than ``limit``."""
    return iter(parse_pattern(text, limit))


def parse_pattern(text: str, limit: int = MAX_EXPANSION) -> Pattern:
    """``text`` understood. Raises ``InvalidPattern`` for unbalanced braces and for more than ``limit`` texts."""
    if len(text) > _MAX_TEXT:
        raise InvalidPattern(f"the pattern is longer than {_MAX_TEXT} characters; list the URLs instead")
    pattern = _sequence(text, _MAX_DEPTH)
    if pattern.count > limit:
        raise InvalidPattern(f"the pattern stands for more than {limit} URLs")
    return pattern


def check_parts(text: str) -> None:
    """Raises ``InvalidPattern`` for more braces and commas than are understood at once."""
    parts = sum(map(text.count, "{},"))
    if parts > MAX_PARTS:
        raise InvalidPattern(f"the pattern has {parts} braces and commas, and {MAX_PARTS} are taken; list the URLs instead")


@dataclass(frozen=True)
class _Text:
    text: str
    count: int = 1

    def at(self, index: int) -> str:
        return self.text

    def ends(self, text: str, start: int) -> Iterable[tuple[int, int]]:
        return [(start + len(self.text), 0)] if text.startswith(self.text, start) else []

    def __iter__(self) -> Iterator[str]:
        yield self.text


@dataclass(frozen=True)
class _Numbers:
    numbers: range
    width: int

    @property
    def count(self) -> int:
        return len(self.numbers)

    def at(self, index: int) -> str:
        return f"{self.numbers[index]:0{self.width}d}"

    def ends(self, text: str, start: int) -> Iterable[tuple[int, int]]:
        digits = _DIGITS.match(text, start)
        for end in range(start + 1, digits.end() + 1 if digits else start):
            own = text[start:end]
            number = None if own == "-" else int(own)
            if number is not None and number in self.numbers and f"{number:0{self.width}d}" == own:
                yield end, self.numbers.index(number)

    def __iter__(self) -> Iterator[str]:
        return (f"{number:0{self.width}d}" for number in self.numbers)


@dataclass(frozen=True)
class _OneOf:
    """``begins`` says how many texts come before those of each choice: a list of folders may be long, and is asked for each shard."""

    choices: Sequence[Pattern]
    begins: Sequence[int]
    count: int

    @classmethod
    def of(cls, choices: Sequence[Pattern]) -> _OneOf:
        begins = [0, *accumulate(choice.count for choice in choices)]
        return cls(choices, begins[:-1], begins[-1])

    def at(self, index: int) -> str:
        if not 0 <= index < self.count:
            raise IndexError(index)
        place = bisect_right(self.begins, index) - 1
        return self.choices[place].at(index - self.begins[place])

    def ends(self, text: str, start: int) -> Iterable[tuple[int, int]]:
        for choice, before in zip(self.choices, self.begins):  # noqa: B905  # 3.9 has no strict=
            yield from ((end, before + index) for end, index in choice.ends(text, start))

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.choices)


@dataclass(frozen=True)
class _AllOf:
    """Its parts in a row; the last one varies fastest. ``count`` is worked out once: it is asked for at every level above.

    ``escaped``: backslashes are taken away from what was joined, here and again at each level above, as braceexpand does.
    """

    parts: Sequence[Pattern]
    count: int
    escaped: bool

    @classmethod
    def of(cls, parts: Sequence[Pattern], escaped: bool) -> _AllOf:
        count = 1
        for part in parts:
            count *= part.count
        return cls(parts, count, escaped)

    def at(self, index: int) -> str:
        texts = []
        for part in reversed(self.parts):
            index, own = divmod(index, part.count)
            texts.append(part.at(own))
        if index:
            raise IndexError("beyond the last text of the pattern")
        return self._joined(reversed(texts))

    def ends(self, text: str, start: int) -> Iterable[tuple[int, int]]:
        reached = {} if self.escaped else {start: 0}
        for part in self.parts:  # every place once, however many ways lead there: the work stays small whatever the pattern
            found: dict[int, int] = {}
            for place, index in reached.items():
                for end, own in part.ends(text, place):
                    found[end] = min(found.get(end, self.count), index * part.count + own)
            reached = found
        return reached.items()

    def __iter__(self) -> Iterator[str]:
        return map(self._joined if self.escaped else "".join, product(*self.parts))

    def _joined(self, texts: Iterable[str]) -> str:
        text = "".join(texts)
        return _ESCAPE.sub(r"\1", text) if self.escaped else text


def offers_choice(inside: str) -> bool:
    """Whether a pair of braces around ``inside`` goes away in an expansion. Raises ``InvalidPattern``."""
    return bool(_numbers(inside) or _letters(inside) or _commas(inside))


def _sequence(text: str, depth: int) -> Pattern:
    """Literals and brace groups in a row."""
    if depth == 0:
        raise InvalidPattern(f"braces are nested more than {_MAX_DEPTH} deep")
    parts: list[Pattern] = []
    start = level = 0
    for special in _SPECIAL.finditer(text):
        character, position = special[0], special.start()
        if character == "{":
            if level == 0 and position > start:
                parts.append(_Text(text[start:position]))
                start = position
            level += 1
        elif character == "}":
            level -= 1
            if level == 0:
                parts.extend(_group(text[start + 1 : position], depth))
                start = position + 1
    if level != 0:
        raise InvalidPattern("the braces of the pattern do not balance; write a literal brace as \\{ or \\}")
    if start < len(text):
        parts.append(_Text(text[start:]))
    return _AllOf.of(parts, "\\" in text)


def _group(inside: str, depth: int) -> list[Pattern]:
    """What stands between a pair of braces; a pair that offers no choice is kept."""
    choice = _numbers(inside) or _letters(inside) or _choices(inside, depth)
    return [choice] if choice else [_Text("{"), _sequence(inside, depth - 1), _Text("}")]


def _numbers(inside: str) -> Optional[Pattern]:
    match = _NUMBERS.match(inside)
    if not match:
        return None
    if len(inside) > 3 * _MAX_DIGITS or max(len(digits or "") for digits in match.groups()) > _MAX_DIGITS:
        raise InvalidPattern(f"a number in the pattern has more than {_MAX_DIGITS} digits")
    start, end, step = int(match[1]), int(match[2]), int(match[3] or 1) or 1
    padded = any(text.startswith(("0", "-0")) and text not in ("0", "-0") for text in match.groups()[:2])
    numbers = range(start, end + 1, step) if start < end else range(start, end - 1, -step)
    return _Numbers(numbers, max(len(match[1]), len(match[2])) if padded else 0)


def _letters(inside: str) -> Optional[Pattern]:
    match = _LETTERS.match(inside)
    if not match:
        return None
    start, end, step = _ALPHABET.index(match[1]), _ALPHABET.index(match[2]), int((match[3] or "1")[:_MAX_DIGITS]) or 1
    chosen = range(start, end + 1, step) if start < end else range(start, end - 1, -step)
    return _OneOf.of([_Text(_ALPHABET[index]) for index in chosen])


def _choices(inside: str, depth: int) -> Optional[Pattern]:
    """The comma-separated alternatives; None where no comma stands outside inner braces."""
    cuts = _commas(inside)
    if not cuts:
        return None
    starts, ends = [0, *(cut + 1 for cut in cuts)], [*cuts, len(inside)]
    return _OneOf.of([_sequence(inside[start:end], depth - 1) for start, end in zip(starts, ends)])  # noqa: B905  # 3.9 has no strict=


def _commas(inside: str) -> list[int]:
    """Where commas stand outside inner braces."""
    cuts = []
    level = 0
    for special in _SPECIAL.finditer(inside):
        character = special[0]
        if character == "{":
            level += 1
        elif character == "}":
            level -= 1
        elif character == "," and level == 0:
            cuts.append(special.start())
    return cuts
