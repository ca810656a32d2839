"""Runs the steps over one sample, and lets nothing through that a shard would not give back as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from forebay_stage.errors import SampleFailed

__all__ = ["Sample", "Step", "applied"]

Sample = dict[str, Any]  # "__key__": str, "__url__": str, and fields by extension: bytes
Step = Callable[[Sample], Sample | Iterable[Sample] | None]


def applied(steps: Sequence[Step], sample: Sample) -> Iterator[Sample]:
    """What ``steps`` make of ``sample``, one at a time: a caller that wants all or nothing collects them first.

    Raises ``SampleFailed`` where a step raises or returns what is no sample; a ``MemoryError`` stays one, as it is not the sample's fault.
    """
    samples: Iterator[Sample] = iter((sample,))
    for step in steps:
        samples = _through(step, samples)
    return samples


def _through(step: Step, samples: Iterator[Sample]) -> Iterator[Sample]:
    for sample in samples:
        key, url = str(sample["__key__"]), sample.get("__url__", "")  # before the step, which may change the sample
        for made in _returned(step, sample, key):
            fault = _fault(made)
            if fault:
                raise SampleFailed(key, _name(step), fault)
            made.setdefault("__url__", url)
            yield made


def _returned(step: Step, sample: Sample, key: str) -> Iterator[Any]:
    try:
        found = step(sample)
        if found is None:
            return
        if isinstance(found, dict):
            found = (found,)
        if isinstance(found, (str, bytes)) or not isinstance(found, Iterable):
            raise SampleFailed(key, _name(step), f"it returned {_shown(found)}: a sample (dict), None or an iterable of samples is wanted")
        yield from found
    except (MemoryError, SampleFailed):
        raise
    except Exception as error:  # a step may raise anything, and all of it is about this sample
        raise SampleFailed(key, _name(step), f"{type(error).__name__}: {error}") from error


def _fault(made: Any) -> str:
    """Why ``made`` is no sample, "" where it is one."""
    if not isinstance(made, dict):
        return f"it returned {_shown(made)} where a sample (dict) is wanted"
    key = made.get("__key__")
    if not isinstance(key, str) or not key:
        return f"it returned a sample with __key__ {_shown(key)}: text is wanted"
    if "." in key.rpartition("/")[2]:
        return f"it returned the key {key!r}: readers take what follows the first dot for the name of a field"
    fields = {name: value for name, value in made.items() if not (isinstance(name, str) and name.startswith("__"))}
    if not fields:
        return f"it returned the sample {key!r} without a field: return None to leave it out"
    return next(filter(None, map(_field_fault, fields.items())), "")


def _field_fault(field: tuple[Any, Any]) -> str:
    name, value = field
    if not isinstance(name, str) or not name or name != name.lower() or "/" in name:
        return f"it returned a field named {name!r}: an extension in small letters is wanted, such as 'jpg'"
    return "" if isinstance(value, bytes) else f"it returned {_shown(value)} as field {name!r}: bytes are wanted"


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:40] + '…'} ({type(value).__name__})"


def _name(step: Step) -> str:
    return str(getattr(step, "text", "") or getattr(step, "__qualname__", type(step).__qualname__))
