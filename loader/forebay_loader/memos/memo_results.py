"""The results of one transform: found by what went into it, kept by what came out.

A sample is told by a digest of what went in, and not by its shard's version: a sample does not tell that, and it would say nothing of the
stages before. So a changed shard, another decoder or another resize before is another key by itself, and a shard that was only renamed,
signed anew or packed anew is the same.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from forebay_loader.base.counters import COUNTS, SharedMemoCounts
from forebay_loader.base.notices import notice_once
from forebay_loader.base.shown_text import shown_source
from forebay_loader.memos.entry import SAMPLE_BYTES
from forebay_loader.memos.errors import MemberMissing, MemoRefused
from forebay_loader.memos.fingerprint import fingerprint_of, name_of
from forebay_loader.memos.kept_value import PLACE, digest_of, mark_of, put_together, taken_apart
from forebay_loader.memos.opened_memo import MemoPlace
from forebay_loader.resume.sample_draws import times_asked

__all__ = ["MemoResults", "Missed", "Naming", "drawn_since", "generators_now", "name_of_sample"]

Naming = Union[None, str, Sequence[str], Callable[[Any], Any]]  # what ``fb.memo(key=…)`` takes


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
        version = getattr(self.transform, "memo_version", None)  # of what the sample only names, such as a clip's URL
        if version is not None and (told := version(sample)):
            name = name_of_sample([name, told], None)
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


def name_of_sample(sample: Any, naming: Naming) -> bytes:
    """16 bytes. ``naming``: None for all that the sample holds, the names of some of its members, or a function that answers with what
    tells samples apart. Raises ``MemoRefused`` for what no digest can be made of, ``MemberMissing``."""
    if callable(naming):
        told = naming(sample)
    elif isinstance(sample, Mapping):
        told = _members(sample, naming)
    elif naming is not None:
        raise MemoRefused(f"key={naming!r} names members of a sample, and this is a {type(sample).__name__}")
    else:
        told = sample
    try:
        kept = taken_apart(told, views=True)
    except MemoRefused as error:
        raise MemoRefused(f"a memo finds what it kept by a digest of the sample, which cannot be made: {error}; or give key=") from error
    return digest_of(kept, SAMPLE_BYTES)


def _members(sample: Mapping[str, Any], naming: Optional[Union[str, Sequence[str]]]) -> Any:
    if naming is None:
        return [[name, one] for name, one in sample.items() if name not in PLACE]
    names = [naming] if isinstance(naming, str) else list(naming)
    missing = [name for name in names if name not in sample]
    if missing:
        raise MemberMissing(
            f"the sample {sample.get('__key__')!r} of {shown_source(sample.get('__url__') or 'a shard that is not known')} has no "
            f"{', '.join(map(repr, missing))}, which fb.memo(key=…) names; it has {', '.join(map(repr, sample))}"
        )
    return [sample.get("__key__"), *([name, sample[name]] for name in names)]
