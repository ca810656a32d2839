"""Moves a worker's state forward to its last batch by arithmetic, without reading or making the batches since.

A loader's state has each worker's last snapshot. It also has, for the batches since: their samples, the shards that were begun with their
versions, and how many samples were read and waited at the end. A shuffle buffer can be replayed on sample numbers alone.

The state moves only if the replay agrees with all of these facts. It does not if a stage left a sample out, the input ended, or a stage
counts. Then the snapshot stays, and a resume makes the batches since again and drops them.
"""

from __future__ import annotations

import random
from array import array
from itertools import count, islice
from typing import Any, Mapping, Optional, Sequence

from forebay_loader.resume.pass_state import drawn_by, draws_of, packed, refs_of, unpacked
from forebay_loader.resume.sample_buffer import drawn_refs

__all__ = ["later"]

_COLUMNS = ("shards", "firsts", "ordinals")
_ENDLESS = "of -1 each"  # no fixed number of outputs: with one, the last output would also end the iteration


def later(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """A worker's entry in a loader's state, moved past its outputs if that is possible; else ``entry`` itself."""
    state, outputs = entry["state"], entry["outputs"]
    if not outputs or entry.get("held", -1) < 0 or state.get("resume") != "exact" or state.get("over") or state.get("kind"):
        return entry
    if not str(state.get("made_of", {}).get("passes", "")).endswith(_ENDLESS):
        return entry
    samples, items = entry["samples"], entry["items"]
    handed = unpacked(entry["handed"])
    buffers = _buffers(state, handed[:samples], entry)
    if buffers is None:
        return entry
    columns = {name: unpacked(entry[name]) for name in _COLUMNS}
    found = {name: unpacked(state[name]) + columns[name][:items] for name in _COLUMNS}
    etags = _etags(state, entry, found["ordinals"], buffers)
    moved = {**state, "yielded": state["yielded"] + outputs, "read": entry["read"], "buffers": buffers, "etags": etags}
    moved.update((name, packed(column)) for name, column in found.items())
    rest = {name: packed(column[items:]) for name, column in columns.items()}
    return {**entry, "state": moved, "since": 0, "outputs": 0, "handed": packed(handed[samples:]), "samples": 0, "items": 0, **rest}


def _buffers(state: Mapping[str, Any], handed: array[int], entry: Mapping[str, Any]) -> Optional[list[Mapping[str, Any]]]:
    """What the stages held after ``handed``; None if that cannot be computed."""
    buffers: Sequence[Mapping[str, Any]] = state.get("buffers") or ()
    kinds = [buffer.get("kind") for buffer in buffers]
    if any(buffer.get("ended") for buffer in buffers) or any(kind != "batch" for kind in kinds[kinds[:1] == ["shuffle"] :]):
        return None
    if kinds[:1] != ["shuffle"]:
        return None if entry["held"] else list(buffers)
    shuffle = _drawn_on(buffers[0], handed, state["read"], entry)
    return None if shuffle is None else [shuffle, *buffers[1:]]


def _drawn_on(buffer: Mapping[str, Any], handed: array[int], read: int, entry: Mapping[str, Any]) -> Optional[Mapping[str, Any]]:
    """``buffer`` after it yielded ``handed``; None if its draws give other samples, or leave another number of them."""
    held, arriving = refs_of(buffer), count(read)
    rng = drawn_by(random.Random(), buffer["rng"])  # noqa: S311  # an order, no secret
    draws = drawn_refs(rng, held, buffer["bufsize"], buffer["initial"], arriving)
    if array("i", islice(draws, len(handed))) != handed or next(arriving) != entry["read"] or len(held) != entry["held"]:
        return None
    return {**buffer, "refs": packed(held), "rng": draws_of(rng)}


def _etags(
    state: Mapping[str, Any], entry: Mapping[str, Any], ordinals: array[int], buffers: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """The versions of the shards whose samples are still needed."""
    oldest = min((min(refs) for refs in map(refs_of, buffers) if refs), default=int(entry["read"]) - 1)
    needed: dict[str, str] = {}
    for item, etag in {**state["etags"], **entry["etags"]}.items():
        ends = int(item) + 1
        if ends == len(ordinals) or (ends < len(ordinals) and ordinals[ends] > oldest):  # some were begun after the last output
            needed[str(item)] = etag
    return needed
