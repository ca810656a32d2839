"""The results of one transform: found by what went into it, kept by what came out."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple, Union

from forebay_loader.base.counters import COUNTS, SharedMemoCounts
from forebay_loader.base.notices import notice_once
from forebay_loader.memos.errors import MemoRefused
from forebay_loader.memos.fingerprint import fingerprint_of, name_of
from forebay_loader.memos.kept_value import mark_of, put_together, taken_apart
from forebay_loader.memos.opened_memo import MemoPlace
from forebay_loader.memos.sample_name import Naming, name_of_sample
from forebay_loader.resume.sample_draws import times_asked

__all__ = ["MemoResults", "Missed", "drawn_since", "generators_now"]


# Whether something drew random numbers: what is kept would be drawn once, and be the same for ever.
def generators_now() -> Dict[str, Any]:
    """Where each generator stands that everybody draws from: some 30 us. One that a function makes for itself is not seen."""
    found: Dict[str, Any] = {"random": random.getstate(), "fb.rng": times_asked()}
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy_random is not None:
        state = numpy_random.get_state()
        found["numpy.random"] = (state[1].tobytes(), *state[2:])
    if torch is not None:
        found["torch"] = torch.get_rng_state().numpy().tobytes()
    return found


def drawn_since(before: Dict[str, Any]) -> List[str]:
    """Which of them moved; one that was not loaded then has not."""
    now = generators_now()
    return [name for name, state in before.items() if now[name] != state]


@dataclass(frozen=True)
class Missed:
    """A result that has to be made. ``given``: the members that went in; ``marks``: of those that ``key=`` does not name, as they were."""

    transform: bytes
    sample: bytes
    given: Optional[Dict[str, Any]]
    marks: Optional[Dict[str, str]]
    generators: Optional[Dict[str, Any]]


@dataclass(frozen=True)
class MemoResults:
    """``keeps_draws``: a transform may draw, and what it drew first stays."""

    place: MemoPlace
    transform: Any
    version: Union[str, int, None]
    naming: Naming
    keeps_draws: bool
    counts: SharedMemoCounts  # travels to workers

    def transform_now(self) -> bytes:
        """What the transform is now: what it holds may have been set since the pipeline was put together. Raises ``MemoRefused``."""
        return fingerprint_of(self.transform, self.version, self.naming)

    def find(self, sample: Any) -> Tuple[Any, Optional[Missed]]:
        """The result for ``sample`` and None, or what tells that it has to be made. Raises ``MemoRefused``, ``MemoError``, and
        ``MemberMissing``."""
        name, transform = name_of_sample(sample, self.naming), self.transform_now()
        kept = self.place.opened().get(transform + name)
        given = dict(sample) if isinstance(sample, Mapping) else None
        if kept is not None:
            try:
                found = put_together(kept, given)
            except KeyError:  # it passed on a member that key= does not name, of which this sample has another one
                pass
            except ValueError:
                COUNTS.add("memo_damaged")
            else:
                COUNTS.add("memo_hits")
                return found, None
        marks = None if self.naming is None or given is None else {one: mark_of(given[one]) or "" for one in given}
        return None, Missed(transform, name, given, marks, None if self.keeps_draws else generators_now())

    def keep(self, missed: Missed, value: Any) -> None:
        """What the transform made. Raises ``MemoRefused`` where it drew random numbers, or made what cannot be kept."""
        drawn = drawn_since(missed.generators) if missed.generators is not None else []
        if drawn:
            raise MemoRefused(
                f"{name_of(self.transform)} drew random numbers ({', '.join(drawn)}), and a memo would give what it drew first for ever: "
                "let what is random be a stage behind the memo, or say fb.memo(…, random='keep')"
            )
        COUNTS.add("memo_made")
        if self.transform_now() != missed.transform:
            name = name_of(self.transform)
            notice_once(
                f"memo changes {name}",
                f"{name} changed what it holds (its attributes, or what it captured) while it ran: fb.memo does not keep such results, for "
                "nobody could tell which values they are of. Let it hold what it needs before it is called, and counters elsewhere",
            )
            COUNTS.add("memo_dropped")
            return
        self.place.opened().keep(missed.transform + missed.sample, taken_apart(value, given=missed.given, marks=missed.marks))
