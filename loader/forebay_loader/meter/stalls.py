"""Hooks the meter into torch's loaders: it times ``_BaseDataLoaderIter.__next__``, and records in ``collate`` when a batch was made.

``install`` may be called often, also before torch is imported. ``remove`` undoes it. If other software has wrapped the same methods since,
ours stay below theirs and do nothing. An error in the meter never reaches the training: the meter logs it once and turns itself off.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from dataclasses import replace
from typing import Any, Callable, Iterable, Iterator, Optional

from forebay_loader.base.activity import activities
from forebay_loader.base.notices import notice_once
from forebay_loader.meter.clock.stall_clock import CLOCK, NO_BATCH
from forebay_loader.meter.process_page import BatchMark, begin_in_worker
from forebay_loader.meter.profile_ranges import profiled
from forebay_loader.meter.report.meter_thread import THREAD
from forebay_loader.meter.report.own_totals import Postfix
from forebay_loader.meter.totals import StallTotals

__all__ = ["around", "install", "is_wanted", "loader_totals", "postfix", "remove", "stalls"]

VARIABLE = "FOREBAY_METER"
_TORCH = "torch.utils.data.dataloader"
# Loaders whose ``__iter__`` starts the workers: the trainer waits for that too.
_LOADERS = ((_TORCH, "DataLoader"), ("torchdata.stateful_dataloader.stateful_dataloader", "StatefulDataLoader"))
_MARK = "__forebay_meter__"


class _Meter:
    """Whether the meter is on, and what it has wrapped: (class, name) -> the original method."""

    def __init__(self) -> None:
        self.on = False
        self.wrapped: "dict[tuple[Any, str], Any]" = {}


_METER = _Meter()


def stalls() -> StallTotals:
    """How long this training process has waited for its loaders so far, and for what. It never raises.

    The time inside ``next(loader)`` counts, and the time to start its workers. All is zero if no loader of torch's was measured.

    Returns:
        Seconds by cause. ``str()`` of it is one sentence, ``later.since(earlier)`` is the time between two calls.

    Examples:
        >>> before = fb.stalls()
        >>> fb.stalls().since(before).total_stall_s
        0.0
    """
    return loader_totals()


def postfix() -> "dict[str, str]":
    """What the trainer waited for in the last ten to twenty seconds, for a progress bar. It never raises, and may be called at every step.

    Returns:
        ``stall``: the share of the time inside ``next(loader)``, in percent, and the cause of most of it. ``data``: that time a step, in
        seconds. Empty before the first batch. A bar shows ``stall=3.1% decode, data=0.021s``.

    Examples:
        >>> bar.set_postfix(fb.postfix())
    """
    return _POSTFIX()


def loader_totals(loader: Any = None) -> StallTotals:
    """The totals of one loader of torch's; without it, of the process. It never raises."""
    found: Optional[StallTotals] = _safely(CLOCK.totals, loader)
    return replace(found or StallTotals(), idle_cores=THREAD.idle_cores)


_POSTFIX = Postfix(loader_totals)


def around(batches: Iterable[Any], loader: Any, cause: Callable[[], str], *, batched: bool) -> Iterator[Any]:
    """Yield ``batches``, which a loader of ours makes of the batches of ``loader``, one of torch's. Each is a step.

    Time that ``loader`` does not take is a stall of ``cause()``. ``batched``: they are collated as ``loader`` does it.
    """
    source, call = iter(batches), CLOCK.around(loader, cause, batched=batched)
    try:
        while True:
            batch: Any = NO_BATCH
            if _METER.on:
                _safely(CLOCK.call, call)
            is_timed = _METER.on
            try:
                batch = next(source, NO_BATCH)
            finally:
                if is_timed:
                    _safely(CLOCK.answered, call, batch)
            if batch is NO_BATCH:
                return
            yield batch
            del batch  # free the batch after its step
    finally:
        call.over()
        if hasattr(source, "close"):
            source.close()


def is_wanted() -> bool:
    """Whether the meter is on: ``FOREBAY_METER=0`` turns it off."""
    return os.environ.get(VARIABLE, "") != "0"


def install() -> None:
    """Meter the loaders of this process from their next iterator on. Does nothing if torch's are not imported or
    the meter is turned off.
    """
    if is_wanted() and sys.modules.get(_TORCH) is not None:
        _safely(_install)


def remove() -> None:
    """Stop metering. The totals stay."""
    _METER.on = False
    for (owner, name), stock in _METER.wrapped.items():
        if getattr(owner.__dict__.get(name), _MARK, False):
            setattr(owner, name, stock)
    _METER.wrapped.clear()


def _install() -> None:
    _METER.on = True
    if begin_in_worker not in activities.on_first:
        activities.on_first.append(begin_in_worker)
    iterators = getattr(sys.modules[_TORCH], "_BaseDataLoaderIter")  # noqa: B009  # private in torch
    _wrap(iterators, "__next__", _timed)
    _wrap(iterators, "__init__", _marked)
    for module, name in _LOADERS:
        loader = getattr(sys.modules.get(module), name, None)
        if loader is not None and "__iter__" in vars(loader):
            _wrap(loader, "__iter__", _begun)


def _wrap(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    stock = getattr(owner, name)
    if not getattr(stock, _MARK, False):
        _METER.wrapped[owner, name] = stock
        made = functools.wraps(stock)(wrapper(stock))
        setattr(made, _MARK, True)
        setattr(owner, name, made)


def _timed(stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def __next__(self: Any) -> Any:  # noqa: N807  # it becomes that method
        if not _METER.on or not _entered(self, __next__):
            return stock(self)
        batch, ended = NO_BATCH, False
        try:
            with profiled("forebay.next"):
                batch = stock(self)
            return batch
        except StopIteration:
            ended = True
            raise
        finally:
            _safely(CLOCK.leave, self, batch, ended=ended)

    return __next__


def _marked(stock: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, loader: Any, *args: Any, **options: Any) -> None:  # noqa: N807  # it becomes that method
        stock(self, loader, *args, **options)
        if _METER.on:
            _safely(_mark, self, loader)

    return __init__


def _mark(iterator: Any, loader: Any) -> None:
    install()  # also wrap what was imported since
    CLOCK.created(loader, iterator)
    iterator._collate_fn = BatchMark(iterator._collate_fn, iterator._num_workers)


def _begun(stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def __iter__(self: Any) -> Any:  # noqa: N807  # it becomes that method
        start_ns = time.monotonic_ns()
        made = stock(self)
        if _METER.on:
            _safely(CLOCK.begun, made, start_ns)
        return made

    return __iter__


def _entered(iterator: Any, wrapper: Any) -> bool:
    """Whether the clock was started for this call. It is not if an outer call is timed already."""
    is_timed = _safely(_enter, iterator, wrapper)
    if is_timed is None:
        CLOCK.forget_call()  # otherwise the watchdog would see a wait that never ends
    return bool(is_timed)


def _enter(iterator: Any, wrapper: Any) -> bool:
    THREAD.begin()
    if CLOCK.enter(iterator):
        return True
    if _is_within(wrapper):
        return False
    CLOCK.forget_call()  # a KeyboardInterrupt came between the call and the clock
    return CLOCK.enter(iterator)


def _is_within(wrapper: Any) -> bool:
    """Whether another call of ours is on this thread's stack."""
    frame = sys._getframe(5)
    while frame is not None:
        if frame.f_code is wrapper.__code__:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _safely(act: Callable[..., Any], *given: Any, **how: Any) -> Any:
    """Return what ``act`` returns. If the meter fails, turn it off and return None: training goes on."""
    try:
        return act(*given, **how)
    except Exception as error:
        _METER.on = False
        THREAD.stop()  # otherwise the log line would report no stalls
        notice_once("meter", f"the meter has stopped, training goes on: {type(error).__name__}: {error}")
        return None
