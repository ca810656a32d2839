"""What is wrong with a shard's tar, said so that a person can act on it; and the three faults that webdataset passes over in silence."""

from __future__ import annotations

import tarfile
from typing import Any, Union

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.notices import notice_once, warn_node
from forebay_proxy.wire.tar.first_bytes import next_step, not_a_tar
from forebay_proxy.wire.tar.members import BadTar
from forebay_proxy.wire.tar.sample_index import faults_text

__all__ = ["MEND", "READ_ON", "RULES", "TarFault", "bears", "cut_in", "fault_of", "named", "tell_faults"]

RULES = ("raise", "warn")
_SILENT = {  # kind -> what webdataset does without a word
    "no-end": "a shard cut exactly here looks the same; webdataset would have taken it for whole, silently",
    "after-end": "webdataset would have left everything behind the marker unread, silently (tars joined by `cat`?)",
    "header": "webdataset would have ended the shard here and dropped the rest, silently",
}
MEND = (
    "Compare its length with the file that it was copied from (`forebay check URL` says what the origin has), and upload it whole; a "
    "handler such as wds.warn_and_continue goes on without the rest"
)
_SAID = {
    "no-end": "its tar ends at byte {at} without the end marker (two blocks of zeros): {text}",
    "after-end": "{text}, at byte {at}",
    "header": "unreadable tar header at byte {at}: {text}",
    "extended": "the header that an extended header or long name announced is unreadable, at byte {at}: {text}",
    "cut": "{text}: its tar is cut off inside a member, at byte {at}. " + MEND,
    "sparse": "{text} at byte {at}; sparse files are not read, write the tar without them (GNU tar: without --sparse)",
}
READ_ON = "on_tar_fault='warn' reads on as webdataset does"


class TarFault(tarfile.ReadError):
    """A shard is not a complete, readable tar. ``str()`` is the message alone, also after webdataset has appended to ``args``."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self._text = text

    def __str__(self) -> str:
        return self._text


def fault_of(bad: BadTar, shard: str, beginning: bytes = b"") -> TarFault:
    """``bad`` as an exception for a handler. ``beginning`` is the shard's first bytes, shown where it is no tar at all."""
    if bad.kind == "start":
        why = not_a_tar(bad, beginning)
        step = next_step(why)
        return TarFault(f"shard {shard}: {why}{f'; {step}' if step else ''}")
    said = f"shard {shard}: {_SAID[bad.kind].format(at=bad.at, text=bad)}"
    return TarFault(f"{said}; {_SILENT[bad.kind]}. {READ_ON}" if bad.kind in _SILENT else said)


def bears(bad: BadTar, shard: str, rule: str, *, whole: bool) -> bool:
    """Whether the shard may end here after all, with a warning.

    A missing end marker is borne only where ``whole``: every byte of the announced length came, so that nothing was cut off on the way.
    """
    if bad.kind not in _SILENT:
        return False
    COUNTS.add("tar_faults")
    if rule != "warn" or (bad.kind == "no-end" and not whole):
        return False
    warn_node(f"shard {shard}: {_SAID[bad.kind].format(at=bad.at, text=bad)}; its samples up to there are used (on_tar_fault='warn')")
    return True


def cut_in(shard: str, name: str, at: int, size: int, came: int) -> TarFault:
    """The ``size`` bytes of member ``name`` begin at byte ``at``, and the shard ends ``came`` bytes later."""
    text = f"its tar ends at byte {at + came}, inside {name!r}, of whose {size} bytes {came} are there"
    return TarFault(f"shard {shard}: unexpected end of data: {text}. {MEND}")


def tell_faults(shard: str, again: Union[int, str], left_out: Union[int, str], gone: str = "") -> TarFault:
    """Say once in this process what is amiss with the samples of ``shard``; returns it for the list of skips. ``gone``: why links are."""
    said = f"shard {shard}: {gone or faults_text(again, left_out)}"
    notice_once("torn" if again else "links", f"{said}. Other shards may have the same fault: a process says this once")
    return TarFault(said)


def named(stream: Any, url: Any) -> str:
    """The shard's name for messages, without what may be secret in ``url``."""
    name = getattr(stream, "name", None)
    if isinstance(name, str):
        return name
    text = str(url)
    if text.startswith("pipe:"):
        return "of a pipe: command"
    return text.partition("?")[0].rpartition("@")[2]
