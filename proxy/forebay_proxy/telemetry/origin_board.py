"""How each origin does: its answers, the rate of its bytes, and its last error, in words. Pure; a listener of events.

Beside the metrics, since those know 16 origins at a time, no words, and nothing of the last minute.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay_proxy.core.events import Event
from forebay_proxy.core.facts.origins import FetchRetried, OriginAnswered, OriginBytes, OriginFailed
from forebay_proxy.telemetry.counters import heard

__all__ = ["MOST_ORIGINS", "OriginBoard", "OriginState"]

MOST_ORIGINS = 64  # a job reads from a handful; a client may name any number, and each costs some 10 kB
RATE_S = 10  # over how long "now" is: a person looks every few seconds, and single bodies come in bursts
MINUTE_S = 60
_ANSWERS = ("status", "changed")  # a 404 says how one shard is, not how the origin does


@dataclass(slots=True)
class _Second:
    """What one second brought. ``second`` is the clock's, without its fraction."""

    second: int
    bytes: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    answers: int = 0  # good ones
    first_byte_s: float = 0.0  # of them, summed


@dataclass(slots=True)
class OriginState:
    """One origin since it was first heard of. Moments are on the board's clock."""

    requests: int = 0
    bytes: int = 0
    failures: int = 0
    throttled: int = 0
    retries: int = 0
    last_code: int | None = None  # 0: no answer came
    last_answer_at: float | None = None
    last_error: str = ""
    last_error_at: float | None = None
    asked_again: bool = False  # after an error of that kind, which nothing good has followed yet
    failing_since: float | None = None  # the first error of those that nothing good has followed yet
    _seconds: deque[_Second] = field(default_factory=lambda: deque(maxlen=MINUTE_S))

    def second(self, now: float) -> _Second:
        """The present second's counts."""
        if not self._seconds or self._seconds[-1].second != int(now):
            self._seconds.append(_Second(int(now)))
        return self._seconds[-1]

    def rate_bytes_s(self, now: float) -> float:
        """Bytes a second, over the last ``RATE_S`` whole seconds and the one that has begun."""
        return sum(each.bytes for each in self._seconds if now - each.second <= RATE_S) / RATE_S

    def codes(self, now: float) -> dict[int, int]:
        """How often it answered what in the last minute, the most frequent first."""
        found: Counter[int] = Counter()
        for each in self._seconds:
            if now - each.second <= MINUTE_S:
                found.update(each.codes)
        return dict(found.most_common())

    def first_byte_s(self, now: float) -> float | None:
        """From a request to the header of its answer, the mean of the last minute's good ones."""
        lately = [each for each in self._seconds if now - each.second <= MINUTE_S]
        answers = sum(each.answers for each in lately)
        return sum(each.first_byte_s for each in lately) / answers if answers else None


class OriginBoard:
    """The origins heard from last. Not thread-safe: the event loop's only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._origins: OrderedDict[str, OriginState] = OrderedDict()
        self._hears: dict[type, Callable[[Any], None]] = {
            FetchRetried: self._retried,
            OriginAnswered: self._answered,
            OriginBytes: self._brought,
            OriginFailed: self._failed,
        }
        self.kinds = tuple(self._hears)

    def __repr__(self) -> str:
        return f"<OriginBoard {len(self._origins)} origins>"

    def listen(self, event: Event) -> None:
        hears = self._hears.get(type(event))
        if hears is not None:
            hears(event)

    def get(self, origin: str) -> OriginState | None:
        return self._origins.get(origin)

    def error_since(self, origin: str, moment: float) -> str:
        """What went wrong last at ``origin``, if that was no earlier than ``moment``, or is its last word; else "".

        Its last word, of an error that is asked again: a throttled origin may want to be left alone for a minute, and who begins to wait
        within that minute waits for the same reason.
        """
        state = self._origins.get(origin)
        if state is None or state.last_error_at is None:
            return ""
        return state.last_error if state.last_error_at >= moment - (MINUTE_S if state.asked_again else 0) else ""

    def refusals(self, origin: str) -> dict[int, int]:
        """How often ``origin`` said no in the last minute, by status, the most frequent first; 0: it did not answer."""
        state = self._origins.get(origin)
        codes = state.codes(self.clock()) if state else {}
        return {code: count for code, count in codes.items() if code == 0 or code >= 400}

    def busiest(self) -> tuple[str, float] | None:
        """The origin that brings most now, and its bytes a second; None while none is known."""
        now = self.clock()
        rates = ((origin, state.rate_bytes_s(now)) for origin, state in self._origins.items())
        return max(rates, key=lambda rate: rate[1], default=None)

    def sums(self) -> tuple[int, int]:
        """(bytes, retries) of all origins."""
        return sum(state.bytes for state in self._origins.values()), sum(state.retries for state in self._origins.values())

    def failing(self) -> dict[str, tuple[float, str]]:
        """Origins whose last answers were errors: for how many seconds, and the last one."""
        now = self.clock()
        return {
            origin: (now - state.failing_since, state.last_error)
            for origin, state in self._origins.items()
            if state.failing_since is not None
        }

    def rows(self, in_flight: Mapping[str, int], slots: Mapping[str, int] | None = None) -> list[dict[str, object]]:
        """``origins`` of ``/v1/status``, the one heard from last first. Ages are seconds. ``slots``: of requests, now."""
        now, slots = self.clock(), slots or {}
        return [
            {**self._row(origin, state, in_flight.get(origin, 0), now), "slots": slots.get(origin)}
            for origin, state in reversed(self._origins.items())
        ]

    def _row(self, origin: str, state: OriginState, in_flight: int, now: float) -> dict[str, object]:
        return {
            "origin": origin,
            "in_flight": in_flight,
            "rate_bytes_s": state.rate_bytes_s(now),
            "first_byte_s": state.first_byte_s(now),
            "bytes": state.bytes,
            "requests": state.requests,
            "last_code": state.last_code,
            "last_answer_s_ago": _ago(now, state.last_answer_at),
            "codes_last_minute": {str(code): count for code, count in state.codes(now).items()},
            "throttled": state.throttled,
            "retries": state.retries,
            "failures": state.failures,
            "last_error": state.last_error,
            "last_error_s_ago": _ago(now, state.last_error_at),
        }

    def _answered(self, fact: OriginAnswered) -> None:
        state, now = self._of(fact.origin), self.clock()
        state.requests += 1
        state.last_code = fact.code
        if fact.code:
            state.last_answer_at = now
        if 0 < fact.code < 400:
            state.asked_again, state.failing_since = False, None
            state.second(now).answers += 1
            state.second(now).first_byte_s += fact.first_byte_s
        state.second(now).codes[fact.code] += 1

    def _brought(self, fact: OriginBytes) -> None:
        state = self._of(fact.origin)
        state.asked_again, state.failing_since = False, None
        state.bytes += fact.count
        state.second(self.clock()).bytes += fact.count

    def _failed(self, fact: OriginFailed) -> None:
        state = self._of(fact.origin)
        state.failures += 1
        state.throttled += fact.reason == "throttled"
        state.asked_again = fact.reason not in _ANSWERS
        state.last_error, state.last_error_at = fact.cause or fact.reason, self.clock()
        if state.asked_again and state.failing_since is None:
            state.failing_since = state.last_error_at

    def _retried(self, fact: FetchRetried) -> None:
        self._of(fact.origin).retries += 1

    def _of(self, origin: str) -> OriginState:
        return heard(self._origins, origin, OriginState, MOST_ORIGINS)


def _ago(now: float, moment: float | None) -> float | None:
    return None if moment is None else now - moment
