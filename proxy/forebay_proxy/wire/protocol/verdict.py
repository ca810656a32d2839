"""The answer to "is training waiting, for what, and what shall I do?": one sentence, how bad it is, its cause, and a line to type. Pure.

The sidecar says it on its page and in ``forebay status``, the loader in its line of every 30 s and in ``fb.stalls()``. Both fill in
``Levels``, as far as they see them; what a trainer measured itself decides, and readers' waits only where no trainer tells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Mapping, Optional, Tuple

__all__ = ["ACT", "FINE", "LOOK", "MUCH", "OF_ORIGIN", "Levels", "OriginLevels", "Verdict", "shown_cause", "verdict"]

FINE, LOOK, ACT = "fine", "look", "act"
MUCH = 0.05  # of the time, as the alert TrainingStalls: below it prefetch hides what there is
LEAST_S = 0.5  # of stall: a training that began two seconds ago is no slow one
BAD = 0.2  # a fifth of what the accelerators cost
STUCK_S = 5.0  # without one good answer
NEARLY_ALL = 0.95  # nobody can say how many workers hide a stall of nearly all of the time: a step of this size, then it is measured anew
MOST_TIMES = 4  # as many workers as now, where nobody knows how many cores are idle
LIMITS = frozenset({429, 503, 509})  # how an origin says that it wants fewer requests
LONG_S = 30.0  # without a batch: slow code gives some, a worker that hangs gives none
WORK = ("read", "decode", "map", "collate")  # what a core does
_WORKED = ("decode", "user code", "collate")  # whose function can be named


@dataclass(frozen=True)
class OriginLevels:
    """The origin that is waited for, or brings most. Of the last minute: ``refusals`` by status (0: no answer), and ``latency_share``, the
    part of a segment's time that passed before its first byte.

    ``failing_s``: for how long nothing good has come from it; None: it serves. ``error``: its last one, in words.
    """

    origin: str
    error: str = ""
    failing_s: Optional[float] = None
    refusals: Mapping[int, int] = field(default_factory=dict)
    rate_bytes_s: float = 0.0
    in_flight: int = 0
    latency_share: float = 0.0


@dataclass(frozen=True)
class Levels:
    """Of the last minute, or of the interval that is judged.

    The training process that waited most of those that train: ``stall_s`` by cause and ``wall_s`` (0: nobody told), the ``steps`` that it
    took meanwhile (None: not known), ``who`` it is; ``others``: jobs that wait too, in words. The
    ``shard`` that it waited for, its ``workers``, ``idle_cores`` of the machine that each of such processes could have (None: not
    measured). ``ended``: nobody trains now.
    Readers: how many there are, ``waited_share`` of their time, ``waiting``: (how many wait for long now, for how many seconds, a shard).
    The cache: ``disk`` in words where it is down, ``turnover``: bytes that left for want of room, as a part of those that came;
    ``passes``: whether a job has come to its second; ``needed_bytes``: for all that jobs read (None: not known).
    ``announced``: whether a plan is. ``origin``: None where nobody knows why it is slow. ``unequal``: ranks that wait for others.
    ``silent``: a process that neither ended nor tells anything, in words.
    ``refused``: what who asked last was told, and how many seconds ago. ``shared``: the shared tier's trouble. ``span``: what is judged.
    ``pattern``: of all shards that are read, as it can be typed ("": not known). ``function``: of the program, which takes most of its
    cause's time ("": not known).
    ``serve``: flag to what a shell is given, which starts the sidecar as it was started, and ``stop``, what ends it (empty: not known, or a
    container's); ``where``: as whom, on which host. ``cache_dir``: its cache, and ``cache_bytes``, at most. ``retry_budget_s``: for how
    long it asks an origin that fails (0: not known).
    """

    stall_s: Mapping[str, float] = field(default_factory=dict)
    wall_s: float = 0.0
    who: str = ""
    shard: str = ""
    ended: bool = False
    workers: Optional[int] = None
    idle_cores: Optional[float] = None
    readers: int = 0
    waited_share: Optional[float] = None
    waiting: Optional[Tuple[int, float, str]] = None
    origin: Optional[OriginLevels] = None
    disk: str = ""
    turnover: float = 0.0
    passes: bool = False
    needed_bytes: Optional[int] = None
    announced: bool = True
    unequal: str = ""
    refused: Optional[Tuple[str, float]] = None
    shared: str = ""
    span: str = "of the last minute"
    others: str = ""
    steps: Optional[int] = None
    pattern: str = ""
    function: str = ""
    serve: Mapping[str, str] = field(default_factory=dict)
    stop: str = ""
    cache_bytes: Optional[int] = None
    cache_dir: str = ""
    where: str = ""
    retry_budget_s: float = 0.0
    silent: str = ""

    @property
    def share(self) -> Optional[float]:
        """The part of its time that training waited; None where no training process tells."""
        return min(1.0, sum(self.stall_s.values()) / self.wall_s) if self.wall_s > 0 else None


@dataclass(frozen=True)
class Verdict:
    """``severity``: fine, look (it costs something), act (it costs much, or training stands). ``cause``: one of ``CAUSES``, "" without.

    ``share``: what part of its time training waited; None: not known. ``do`` is advice in words, ``line`` what to type; "" for nothing.
    """

    severity: str
    cause: str
    share: Optional[float]
    sentence: str
    do: str = ""
    line: str = ""

    def as_json(self) -> Dict[str, Any]:
        return {name: getattr(self, name) for name in ("severity", "cause", "share", "sentence", "do", "line")}

    @property
    def advice(self) -> str:
        """What to do, and at its end what to type, bare: it is copied. "" for nothing."""
        return f"{self.do}{'' if self.do.endswith(':') else ':'} {self.line}" if self.line else self.do

    def __str__(self) -> str:
        return "; ".join(text for text in (self.sentence, self.advice) if text)


# By cause: what to do in words, and what to type. {shard} is one that is waited for.
CAUSES: Mapping[str, Tuple[str, str]] = {
    "origin down": (
        "tell whoever runs the origin; Forebay goes on asking.{until} To test it (this changes nothing):",
        "forebay check '{shard}'",
    ),
    "origin refuses": ("mend what it was asked for: that is not there, or not allowed. To ask again:", "forebay check '{shard}'"),
    "origin limit": (
        "ask the origin's owner for a higher limit; other jobs may use up part of it. Forebay has already slowed down, and a restart would "
        "not help.{later} To test it (this changes nothing):",
        "forebay check '{shard}'",
    ),
    "origin latency": (
        "let more shards come ahead, and start the training again: the origin's answers take long to begin",
        "export FOREBAY_AHEAD=64",
    ),
    "origin rate": ("fill the cache before the run, or read from a nearer copy: the origin brings no more", "forebay warm 'PATTERN'"),
    "origin": ("ask the sidecar why bytes come too slowly", "forebay status"),
    "nothing announced": (
        "start the training through Forebay: no program says what it will read, so nothing comes ahead",
        "forebay run -- python train.py",
    ),
    "cache too small": ("", ""),  # see ``_larger``
    "proxy": ("leave Forebay a core of its own: it gets too little of a processor", "top -p $(forebay ps --json | jq -r '.[0].pid')"),
    "disk": (
        "ask who runs this machine for a better disk, then start Forebay with --cache-dir there: the cache's{where} {is}. To measure it "
        "(this changes nothing):",
        "forebay doctor",
    ),
    "read": ("let more workers take tars apart", "num_workers={workers}"),
    "decode": ("let more workers decode, or keep what they made (fb.memo)", "num_workers={workers}"),
    "user code": ("let more workers run your own code, or make it cheaper", "num_workers={workers}"),
    "collate": (
        "put batches together in the workers: dataset.batched(64) with batch_size=None",
        "num_workers={workers}",
    ),
    "transfer": ("let more batches wait ahead", "prefetch_factor=4"),
    "start": ("keep the workers: they are started anew each epoch", "persistent_workers=True"),
    "ranks": ("give each rank as many steps as the others", "fb.WebLoader(dataset, batch_size=64)"),
    "trainer": ("data is not the problem: if training is slow, profile its step, or look at the accelerator and at other ranks", ""),
    "not known": ("nobody could tell what the workers did: if no batch comes for 60 s, the training logs where they stand", ""),
}
OF_ORIGIN = frozenset({"origin down", "origin limit", "origin latency", "origin rate", "nothing announced", "cache too small"})
# What is waited for, in a sentence.
_SAID = {
    "origin down": "the origin, which is down",
    "origin limit": "the origin, which limits us",
    "origin latency": "the origin, whose answers begin late",
    "origin rate": "the origin, which brings no more",
    "nothing announced": "the origin, as nothing is announced",
    "cache too small": "data that had left the cache",
    "proxy": "the sidecar, which had the bytes",
    "disk": "slow reads of the cache's disk",
    "read": "tars to be taken apart",
    "decode": "decoding",
    "user code": "your own code",
    "collate": "the collation",
    "transfer": "batches on their way from worker to trainer",
    "start": "workers to start",
    "not known": "what nobody could tell",
}


def shown_cause(cause: str) -> str:
    """A cause of the meter's, as people are told it."""
    return {"map": "user code", "other": "not known"}.get(cause, cause)


def verdict(levels: Levels) -> Verdict:
    """What a person should know first."""
    found = _verdict(levels)
    if not levels.silent:
        return found
    severity = LOOK if found.severity == FINE else found.severity
    return replace(found, severity=severity, sentence=f"{levels.silent}; {found.sentence}", do=found.do or "read that job's own log")


def _verdict(levels: Levels) -> Verdict:
    share = None if levels.ended else levels.share
    if levels.unequal:
        return _made(levels, ACT, "ranks", share, f"training stands: {levels.unequal}")
    if (outage := _outage(levels, share)) is not None:
        return outage
    if share is not None and share >= MUCH and sum(levels.stall_s.values()) >= LEAST_S:
        return _stalled(levels, share)
    if levels.disk:
        said = f"the cache disk is down ({levels.disk}): bytes pass through memory"
        return _made(levels, LOOK, "disk", share, said if share is None else f"{said}; training waited {_percent(share)}")
    return _readers(levels) if share is None else _hardly(levels, share)


def _outage(levels: Levels, share: Optional[float]) -> Optional[Verdict]:
    """Readers have waited for seconds, and the origin does not serve. None: it does, or training does not feel it yet."""
    origin = levels.origin
    if levels.waiting is None or origin is None:
        return None
    count, seconds, _ = levels.waiting
    who = f"{count} readers have" if count > 1 else "a reader has"
    bad = f" ({_answers(origin)} in the last minute)" if origin.refusals else ""
    if origin.failing_s is None and not origin.error:
        if share is not None or levels.wall_s:
            return None  # slow: the stall's own cause says more
        cause = _of_origin(levels)
        return _made(levels, LOOK, cause, share, f"{who} waited {seconds:.0f} s for {origin.origin}: no answer yet{bad}")
    since = max(seconds, origin.failing_s or 0.0)
    severity = ACT if share is None or share >= MUCH else LOOK
    felt = "" if share is None else f"; training waited {_percent(share)} {levels.span}"
    cause = "origin limit" if _is_limited(origin) else "origin down"
    return _made(
        levels, severity, cause, share, f"{who} waited {since:.0f} s for {origin.origin}: {origin.error or 'no answer'}{bad}{felt}"
    )


def _stalled(levels: Levels, share: float) -> Verdict:
    stall_s = sum(levels.stall_s.values())
    word, seconds = max(levels.stall_s.items(), key=lambda each: each[1])
    cause = _of_origin(levels) if word == "origin" else shown_cause(word)
    who = f" ({levels.who})" if levels.who else ""
    part = share * seconds / stall_s
    most = "nearly all of it" if seconds >= 0.95 * stall_s else "most of it" if seconds >= 0.5 * stall_s else _percent(part)
    goes_on = "runs on, but " if levels.steps else ""
    said = f"training {goes_on}waited {_percent(share)} {levels.span}, {most} for {_shown(levels, cause)}{who}"
    found = _made(levels, ACT if share >= BAD else LOOK, cause, share, said)
    if levels.steps == 0 and levels.wall_s >= LONG_S:
        found = replace(found, sentence=f"{said}; no batch came in {levels.wall_s:.0f} s")
        if word in WORK or word == "map":
            found = replace(found, do="a worker may hang: the training logs where it stands once no batch came for 60 s", line="")
    return replace(found, sentence=f"{found.sentence}; {levels.others}") if levels.others else found


def _hardly(levels: Levels, share: float) -> Verdict:
    """Training waits for little, or has only begun."""
    if share >= MUCH:
        said = f"training has waited {sum(levels.stall_s.values()):.1f} s in {levels.wall_s:.1f} s: too early to judge"
        return Verdict(FINE, "", share, said)
    said = f"training hardly waits for data, {_percent(share)} {levels.span}"
    return _made(levels, FINE, "trainer", share, said)


def _readers(levels: Levels) -> Verdict:
    """No training process tells what it waited: only readers are visible."""
    if levels.ended and levels.share is not None and not levels.readers:
        word = max(levels.stall_s, key=lambda each: levels.stall_s[each], default="")
        most = f", most of that for {shown_cause(word)}" if levels.share >= MUCH else ""
        said = f"training has ended; it waited {_percent(levels.share)} of its last minute{most}"
        return Verdict(FINE, "", None, f"{said}{f' ({levels.who})' if levels.who else ''}")
    if not levels.readers and levels.waited_share is None:
        if levels.refused is not None:
            said = f"nobody has read in the last minute; who asked last, {levels.refused[1]:.0f} s ago, was told: {levels.refused[0]}"
            shard = levels.refused[0].partition(": ")[0].rpartition(" ")[2]
            return _made(replace(levels, shard=shard if "://" in shard and "…" not in shard else ""), LOOK, "origin refuses", None, said)
        return Verdict(FINE, "", None, "nobody has read in the last minute")
    share = levels.waited_share or 0.0
    unknown = "whether training waits is not known: only readers are visible"
    if share < MUCH:
        return Verdict(
            FINE, "", None, f"data arrives as fast as it is read: readers waited {_percent(share)} of the last minute; {unknown}"
        )
    cause = _of_origin(levels)
    return _made(levels, LOOK, cause, None, f"readers waited {_percent(share)} of the last minute for {_shown(levels, cause)}; {unknown}")


def _of_origin(levels: Levels) -> str:
    """Why bytes of an origin are waited for."""
    origin = levels.origin
    if origin is not None and _is_limited(origin):
        return "origin limit"
    if origin is not None and (origin.failing_s or 0.0) >= STUCK_S:
        return "origin down"
    if not levels.announced:
        return "nothing announced"
    if levels.passes and levels.turnover >= 0.5:
        return "cache too small"
    if origin is None:
        return "origin"
    return "origin latency" if origin.latency_share >= 0.5 else "origin rate"


def _is_limited(origin: OriginLevels) -> bool:
    """It says so with 429; or with another of these while it serves others: one that serves nobody any more is down."""
    limited = sum(times for status, times in origin.refusals.items() if status in LIMITS)
    serves = origin.rate_bytes_s > 0 and (origin.failing_s or 0.0) < STUCK_S
    return limited > 0 and limited >= sum(origin.refusals.values()) / 2 and (serves or 429 in origin.refusals)


def _shown(levels: Levels, cause: str) -> str:
    """A cause of an origin's with the origin's name and what it does now."""
    origin = levels.origin
    if origin is None or not cause.startswith(("origin", "nothing", "cache")):
        return _SAID.get(cause, cause) + (f" in {levels.function}" if levels.function and cause in _WORKED else "")
    refused = [f"it answered {_answers(origin)} in the last minute: slow down"] if cause == "origin limit" and origin.refusals else []
    busy = origin.rate_bytes_s >= 1 or origin.in_flight
    details = [f"{_size(origin.rate_bytes_s)}/s now", f"{origin.in_flight} requests open"] if busy else []
    return f"{_SAID.get(cause, 'the origin')} ({', '.join([origin.origin, *refused, *details])})"


def _answers(origin: OriginLevels) -> str:
    return " and ".join(f"{times} x {status or 'failed'}" for status, times in origin.refusals.items())


def _made(levels: Levels, severity: str, cause: str, share: Optional[float], sentence: str) -> Verdict:
    do, line = CAUSES[cause]
    if "{workers}" in line:
        enough, why = _workers(levels, share or 0.0, cause)
        do, line = (f"{do}: {why}" if enough else why), line.format(workers=enough) if enough else ""
    stays = not levels.passes and levels.turnover < 0.5
    do = do.replace("{later}", " It gets better from the second epoch on: what has come stays cached." if stays else "")
    failing_s = (levels.origin.failing_s if levels.origin is not None else None) or 0.0
    left_s = max(0.0, levels.retry_budget_s - failing_s)
    left = f"{left_s / 60:.0f} min" if left_s >= 90 else f"{left_s:.0f} s"
    until = f" Unless it answers within {left} the training gets an error." if levels.retry_budget_s else ""
    do = do.replace("{until}", until)
    if cause == "cache too small":
        do, line = _larger(levels)
    is_ = f"fails ({levels.disk})" if levels.disk else "is too slow for this training"
    do = do.replace("{is}", is_).replace("{where}", f" ({levels.cache_dir})" if levels.cache_dir else "")
    if levels.pattern and "'" not in levels.pattern:
        line = line.replace("PATTERN", levels.pattern)
    shard = levels.waiting[2] if levels.waiting is not None else levels.shard
    if "{shard}" in line:
        line = line.format(shard=shard) if shard and "'" not in shard else line.format(shard="URL")
    if levels.shared and cause.startswith("origin"):
        do = f"{do}; the shared tier is left alone: {levels.shared}"
    return Verdict(severity, cause, share, sentence, do, line)


def _larger(levels: Levels) -> Tuple[str, str]:
    """The sidecar again, with a cache that an epoch fits in."""
    if not levels.needed_bytes:
        return (
            "give Forebay a larger cache: an epoch reads more than it holds, and fetches it again. What size helps:",
            "forebay plan 'PATTERN'",
        )
    has = f", the cache holds {_size(levels.cache_bytes)}" if levels.cache_bytes else ""
    why = f"an epoch needs {_size(levels.needed_bytes)}{has}, so its data is fetched again each epoch"
    goes_on = "Nothing is lost, and training goes on: without Forebay it reads from the origin."
    larger = f"--cache-size {_size_to_type(levels.needed_bytes)}"
    if levels.serve:
        how = f"Type this{levels.where}, in tmux, as it stays in the foreground:"
        line = f"{levels.stop} && forebay serve {' '.join({**levels.serve, '--cache-size': larger}.values())}"
    else:
        how, line = "In the command or manifest that starts it, write:", larger
    return f"start Forebay again with a larger cache: {why}. {goes_on} {how}", line


def _workers(levels: Levels, share: float, cause: str) -> Tuple[int, str]:
    """(how many workers would hide the stall, or as many as cores are idle for; 0: no more would pay, and why).

    Let the trainer have waited for the share s of its time: it would take batches 1 / (1 - s) times as fast, and as many times more workers
    would make them. Without workers it makes them itself, in the share s: workers beside it have the rest of the time for that.
    """
    if levels.workers is None:
        return 0, "let more workers do it"
    share = min(share, NEARLY_ALL)
    wanted = math.ceil(levels.workers / (1 - share) if levels.workers else share / (1 - share))
    if levels.idle_cores is None:
        wanted = min(wanted, MOST_TIMES * max(1, levels.workers))
        return wanted, f"workers {levels.workers} -> {wanted} would help, if there are cores for them"
    enough = min(wanted, levels.workers + int(levels.idle_cores))
    if enough <= levels.workers:
        busy = "all cores are busy, so more workers would not help"
        what = f"{_SAID.get(cause, cause)}{f' in {levels.function}' if levels.function else ''}"
        keep = ", or keep its results on a disk (fb.memo)" if cause in ("decode", "user code") else ""
        return 0, f"make {what} cheaper{keep}: {busy}"
    return enough, f"workers {levels.workers} -> {enough} would help: {levels.idle_cores:.1f} cores are idle"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""


def _size_to_type(count: int) -> str:
    """A tenth more, for what a cache needs besides, in two digits: ``1.3GB``."""
    size = math.ceil(1.1 * count / 1e6)
    digits = max(0, len(str(size)) - 2)
    size = math.ceil(size / 10**digits) * 10**digits
    return f"{size}MB" if size < 1000 else f"{size / 1000:g}GB"
