"""The results of one transform: found by what went into it, kept by what came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from forebay_loader.base.counters import COUNTS
from forebay_loader.memos.chance import drawn_since, generators_now
from forebay_loader.memos.errors import MemoRefused
from forebay_loader.memos.fingerprint import Fingerprint
from forebay_loader.memos.kept_value import put_together, taken_apart
from forebay_loader.memos.opened_memo import MemoPlace
from forebay_loader.memos.sample_name import Naming, name_of_sample

__all__ = ["MemoResults", "Missed"]


@dataclass(frozen=True)
class Missed:
    """A result that has to be made. ``given``: the members that went in, as they were."""

    key: bytes
    given: Optional[Dict[str, Any]]
    generators: Optional[Dict[str, Any]]


@dataclass(frozen=True)
class MemoResults:
    """``keeps_draws``: a transform may draw, and what it drew first stays."""

    place: MemoPlace
    transform: Fingerprint
    naming: Naming
    keeps_draws: bool

    def find(self, sample: Any) -> Tuple[Any, Optional[Missed]]:
        """The result for ``sample`` and None, or what tells that it has to be made. Raises ``MemoRefused``, ``MemoError``."""
        key = self.transform.key(name_of_sample(sample, self.naming))
        kept = self.place.opened().get(key)
        given = dict(sample) if isinstance(sample, Mapping) else None
        if kept is not None:
            try:
                found = put_together(kept, given)
            except (KeyError, ValueError):  # it refers to a member that key= does not name, and this sample has not
                COUNTS.add("memo_damaged")
            else:
                COUNTS.add("memo_hits")
                return found, None
        return None, Missed(key, given, None if self.keeps_draws else generators_now())

    def keep(self, missed: Missed, value: Any) -> None:
        """What the transform made. Raises ``MemoRefused`` where it drew random numbers, or made what cannot be kept."""
        drawn = drawn_since(missed.generators) if missed.generators is not None else []
        if drawn:
            raise MemoRefused(
                f"{self.transform.name} drew random numbers ({', '.join(drawn)}), and a memo would give what it drew first for ever: let "
                "what is random be a stage behind the memo, or say fb.memo(…, random='keep')"
            )
        COUNTS.add("memo_made")
        self.place.opened().keep(missed.key, taken_apart(value, given=missed.given))
