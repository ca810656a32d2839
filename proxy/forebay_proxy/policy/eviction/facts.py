"""What admission reports to whoever fetches ahead of need. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from forebay_proxy.core.events import Fact

__all__ = ["DebtSettled", "LeadGivenBack"]


@dataclass(frozen=True, slots=True)
class DebtSettled(Fact):
    """A segment that came for ``reader``, or for which it owed, was read or is gone: it may displace one more."""

    reader: Hashable


@dataclass(frozen=True, slots=True)
class LeadGivenBack(Fact):
    """The lead of ``reader``, which is idle, is nobody's any more: others wanted its room."""

    reader: Hashable
