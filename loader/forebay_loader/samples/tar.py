"""Samples from tar shards at memory speed: webdataset's ``tar_file_expander`` and ``group_by_keys`` in one pass.

``OpenSample`` groups files by the key of their names; the hot loop here does the same for the common member, without a call for each file.

Sources as an opener gives them (``{"url", "stream"[, "local_path"]}``) in, samples out, the same ones webdataset gives, in the same order.
The common member (a plain header, whole in the window, nothing to rename or select) is read without an object of its own: one ``struct``
call, one checksum, two ``partition``. Other members go through ``Walk``, slowly, to the same end.

Handlers are called where webdataset calls them, and their answers mean the same:
- *member*: a callback of the user's raised, or the data is cut short. True: the next member. False: the next shard.
- *shard*: its headers cannot be read, or what was raised above came through. True: the next shard. False: reading ends.
- *group*: a file does not fit its sample. True: the next file. False: reading ends.
"""

from __future__ import annotations

import io
import sys
import tarfile
import zlib
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, NamedTuple, Optional, Tuple

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.errors import ProxyUnreachable
from forebay_loader.base.notices import notice_once, warn_node
from forebay_loader.meter.skips.recorded_handler import Handler, Place, RecordedHandler, asked
from forebay_loader.samples.byte_window import Flowing, window_over
from forebay_loader.samples.decompress import unpacked
from forebay_loader.samples.faults import MEND, RULES, TarFault, bears, cut_in, fault_of, named, tell_faults
from forebay_loader.samples.index_samples import indexed_samples
from forebay_loader.samples.open_sample import MOST_KEYS, LeaveReading, OpenSample, Sample, reraise
from forebay_loader.stream.shard_descriptor import Descriptor
from forebay_loader.stream.shard_stream import ShardStream
from forebay_proxy.wire.tar.header import ENCODING, EXPECTED, HEADER, TIMES, blocks, learn
from forebay_proxy.wire.tar.members import BadTar, Links, Member, Walk, links_before
from forebay_proxy.wire.tar.sample_index import RESERVED, is_meta, is_twin, split_name

__all__ = ["LINKS_GONE", "SampleStart", "Samples", "TarFault", "check_rule", "reads_again"]

# Asking for an index costs what walking 200 headers does; once it is known to this process, nothing.
INDEX_FROM_BYTES = 4 << 20

_KNOWN_MOST = 1 << 14  # suffixes; names of many dots make many

LINKS_GONE = (
    "hard or symbolic links are left out of their samples: the bytes that they point to have gone by, for the tar is compressed, or comes "
    "from a command or past the sidecar; write the files themselves (GNU tar: --dereference --hard-dereference)"
)
_SUFFIXES: Dict[bytes, str] = {}  # behind the first dot of a name -> the sample's key for it


def check_rule(on_tar_fault: str) -> None:
    """Raise ``ValueError`` unless it is "raise" or "warn"."""
    if on_tar_fault not in RULES:
        raise ValueError(f"on_tar_fault is {on_tar_fault!r}; it can be {' or '.join(map(repr, RULES))}")


class SampleStart(NamedTuple):
    """Where a source is entered: at sample ``number``. ``enter`` gives its samples from there on, None where it cannot. ``sure``: it had
    that many, and no handler that may have passed some over."""

    number: int
    enter: Optional[Callable[[], Optional[Iterator[Sample]]]]
    sure: bool


class _NextShard(Exception):
    """The member handler gave this shard up."""


class Samples:
    """One reading of sources, one after the other.

    ``handler``: None raises. ``markers``: a sample ends with its shard, as in webdataset 1.x; before, files of the same key at the end of
    one shard and the start of the next came together. ``on_tar_fault``: "raise" or "warn", for a missing end marker, data after it, and an
    unreadable header.
    """

    def __init__(
        self,
        handler: Optional[Handler] = None,
        select_files: Optional[Callable[[str], bool]] = None,
        rename_files: Optional[Callable[[str], str]] = None,
        markers: bool = True,
        on_tar_fault: str = "raise",
    ) -> None:
        check_rule(on_tar_fault)
        self._handler = handler or reraise
        self._select = select_files
        self._rename = rename_files
        self._markers = markers
        self._rule = on_tar_fault
        self._open = OpenSample(self._handler)
        self._shown = ""  # the present shard
        self._lost = False  # told of it: links are left out
        self._again: Optional[Callable[[int, int], bytes]] = None  # reads its bytes by their place
        self._links: Optional[Links] = None  # of it, once they are asked for
        self._linked = False  # in a shard before: it is likely in the next

    def waits(self) -> bool:
        """Whether a sample is held back: files of the next shard may belong to it."""
        return self._open.sample is not None

    def read(self, sources: Iterable[Dict[str, Any]]) -> Iterator[Sample]:
        for source in sources:
            url = source["url"]
            try:
                assert isinstance(source, dict)
                assert "stream" in source
                samples = self._shard(source["stream"], url, source.get("local_path"))
                yield from self._entered(samples, source) if "start" in source else samples
            except LeaveReading as leave:
                if leave.error is not None:
                    raise leave.error from None
                break
            except Exception as error:
                error.args = (*error.args, source.get("stream"), url)
                if not asked(self._handler, error, Place("read", "shard", url, function="tar_file_expander")):
                    break
            if self._markers:  # also behind a shard given up, where webdataset has no marker and would join two shards' files in one sample
                yield from self._open.flush()
        yield from self._open.flush()

    def _entered(self, samples: Iterator[Sample], source: Dict[str, Any]) -> Iterator[Sample]:
        """The samples of ``source`` from its "start" on. Raises ``ValueError`` where it is sure to have them, and has not."""
        start: SampleStart = source["start"]
        found = start.enter() if start.enter is not None else None
        if found is not None:
            yield from self._open.flush()
            yield from found
            return
        yield from self._open.flush()  # of the shard before: counted here, it would be one of those to be left out
        passed, whole = 0, False
        while not whole:
            try:
                sample = next(samples, None)
            except Exception:  # the handler's, in whose hands the sample that is open would be given after all
                if passed < start.number:
                    next(self._open.flush(), None)
                raise
            if sample is None:
                whole, sample = True, next(self._open.flush(), None) if passed < start.number else None
            if sample is None:
                break
            passed += 1
            if passed > start.number:
                yield sample
        if passed < start.number and start.sure:
            raise ValueError(
                f"shard {named(source['stream'], source['url'])}: is to be gone on with at sample {start.number}, and has {passed}: has it "
                "changed? Bring back what it was; or set_epoch(n) without a state begins epoch n from its start"
            )

    def _shard(self, stream: Any, url: Any, local_path: Any) -> Iterator[Sample]:
        known = self._known(stream, url)
        if known is not None:
            yield from self._open.flush()
            try:
                yield from known
            finally:
                stream.close()
            return
        shard, before = named(stream, url), self._open.sample
        try:
            again = reads_again(stream)
            plain = window_over(stream)
            window = unpacked(plain)
            self._begin_shard(shard, url, again if window is plain else None)
            yield from self._walk(window, url, local_path, str(stream))
        except BadTar as bad:
            if not bears(bad, shard, self._rule, whole=_is_whole(stream)):
                raise fault_of(bad, shard, window.read(0, 64) if bad.kind == "start" else b"") from None
            if bad.kind != "no-end" and isinstance(self._handler, RecordedHandler):  # every byte was read there: nothing is passed over
                self._handler.note(fault_of(bad, shard), Place("read", "shard", url, function="on_tar_fault"))
        except tarfile.ReadError as error:  # of compressed bytes; or ours
            raise error if isinstance(error, TarFault) else TarFault(f"shard {shard}: {error}. {MEND}") from None
        except _NextShard:
            return
        finally:
            if isinstance(stream, (ShardStream, Descriptor, io.BufferedReader)):  # the last: a local file, which webdataset leaves open
                stream.close()
        if self._open.sample is before and self._select is None:
            warn_node(f"shard {shard}: holds no sample: a sample's files are named KEY.SUFFIX, and names like __x__ are left out")

    def _begin_shard(self, shard: str, url: Any, again: Optional[Callable[[int, int], bytes]]) -> None:
        self._open.begin_shard(shard, url)
        self._shown, self._again, self._lost = shard, again, False
        self._links = Links() if self._linked and again is not None else None

    def _known(self, stream: Any, url: Any) -> Optional[Iterator[Sample]]:
        """The samples of a shard that is here as a file, by its index if there is one: its maker walked the tar and found nothing amiss."""
        plain = self._markers and self._select is None and self._rename is None and ENCODING == "utf-8"
        if not plain or getattr(stream, "size", 0) < INDEX_FROM_BYTES:
            return None
        return indexed_samples({"url": url, "stream": stream}, only_kept=True)

    def _walk(self, window: Flowing, url: Any, local_path: Any, shown: str) -> Iterator[Sample]:  # noqa: PLR0912, PLR0915  # the hot loop
        """One shard's samples but the last, which stays open. Local names only, no object for a member, no call that can be spared."""
        unpack, adler, expected, suffixes, times = HEADER.unpack_from, zlib.adler32, EXPECTED, _SUFFIXES, TIMES.match
        walk, opened = Walk(window.read), self._open
        simple = self._select is None and self._rename is None and ENCODING == "utf-8" and not opened.odd and self._links is None
        at, seen = window.base, opened.seen
        while True:
            see = seen.add if len(seen) < MOST_KEYS else _forget
            sample: Any = opened.sample
            stem = opened.stem
            buffer: Any = window.buffer
            limit = window.end - window.base
            at -= window.base
            need, known = 512, False  # where the member ends
            while simple and at + 512 <= limit:
                data = at + 512
                field, digits, after, check, kind, prefix = unpack(buffer, at)
                if kind == 120:  # an extended header: it may hold nothing but times, in one block
                    if data + 1024 > limit:
                        need = 1536
                        break
                    idle = times(buffer, data, data + 512)
                    if idle is None or digits != b"%011o" % (idle.end() - data):
                        break
                    total = adler(buffer[at:data]) & 0xFFFF
                    if total != expected.get(check) and total != learn(check):
                        break
                    field, digits, after, check, kind, prefix = unpack(buffer, data + 512)
                    data += 1024
                if kind != 48 or prefix or (after and after != 32):
                    break
                total = adler(buffer[data - 512 : data]) & 0xFFFF
                if total != expected.get(check) and total != learn(check):
                    break
                try:
                    end = data + int(digits, 8)
                except ValueError:  # base 256, or blank
                    break
                found, _, ending = field.partition(b"\0")[0].partition(b".")
                suffix = suffixes.get(ending) or _learn_suffix(ending)
                if not data <= end <= limit or not suffix:
                    need, known = end - at, True
                    break
                if found == stem:
                    if suffix in sample:
                        break
                    sample[suffix] = buffer[data:end]
                    at = end + 511 & -512
                    continue
                if not found or found[0] == 95 or found[-1] == 47 or (stem is None and sample is not None):  # maybe __meta__, or a/._twin
                    break
                try:
                    key = found.decode()
                except UnicodeDecodeError:
                    break
                if found in seen:
                    opened.again(key)
                see(found)
                done, stem = sample, found
                sample = {"__key__": key, "__url__": url, suffix: buffer[data:end]}
                if local_path is not None:
                    sample["__local_path__"] = local_path
                at = end + 511 & -512
                if done is not None:
                    yield done
            opened.sample, opened.stem = sample, stem
            at += window.base
            if at + need > window.end:
                try:
                    came = window.more(at, need)
                except Exception as error:
                    if not known:
                        raise
                    self._give_up(error, shown, url)
                    came, at = True, at + blocks(need)
                if came:
                    continue  # once more, with what came
            if at > window.end:
                raise BadTar("cut", window.end, "unexpected end of data")
            member = walk.member(at)
            if member is None:
                return
            yield from self._take(member, window, url, local_path, shown)
            # What a global header says holds for all members behind it.
            simple = simple and not walk.globals and not opened.odd and self._links is None
            at = member.end

    def _take(self, member: Member, window: Flowing, url: Any, local_path: Any, shown: str) -> Iterator[Sample]:
        """One member, as webdataset does it step by step, and a link as the file that it points to."""
        if not member.regular and not member.target:
            return
        try:
            place = self._place(member)
            if place is None:
                return self._leave_out(member)
            name = self._wanted(member.name)
            if name is None or not (member.regular or self._lacks(name)):
                return
            value: Any = window.read(*place) if member.regular or self._again is None else self._again(*place)
            if len(value) < place[1]:
                raise cut_in(self._shown, member.name, *place, len(value))
        except Exception as error:
            self._give_up(error, shown, url, member.name)
            return
        yield from self._open.add(name, value, url, local_path)

    def _place(self, member: Member) -> Optional[Tuple[int, int]]:
        """Where its bytes lie, and how many; None: of a link, they are not to be had."""
        if self._again is None or (self._links is None and member.regular):
            return (member.offset, member.size) if member.regular else None
        try:
            if self._links is None:
                self._links, self._linked = links_before(self._again, member.start), True
            return self._links.place(member)
        except ProxyUnreachable:  # the shard itself goes on past the sidecar
            self._again = None
            return None

    def _lacks(self, name: str) -> bool:
        """Whether ``name`` is a file of a sample, and not one that the present sample has by another spelling."""
        key, suffix = split_name(name)
        sample = self._open.sample
        return key is not None and not (sample is not None and sample["__key__"] == key and suffix in sample)

    def _leave_out(self, link: Member) -> None:
        if is_meta(link.name) or not self._lacks(link.name):
            return
        COUNTS.add("links_left_out")
        if not self._lost:
            self._lost = True
            self._open.tell(tell_faults(self._shown, 0, "some", "" if self._again is not None else LINKS_GONE), link.name)

    def _give_up(self, error: Exception, shown: str, url: Any, name: str = "") -> None:
        """What is wrong with one member, for the handler."""
        if error.args and not isinstance(error, TarFault):
            error.args = (f"{error.args[0]} @ {shown}", *error.args[1:])
        if not asked(self._handler, error, Place("read", "file", url, name, "tar_file_iterator", no="shard")):
            raise _NextShard from None

    def _wanted(self, name: str) -> Optional[str]:
        """The name a member goes by; None: it is left out."""
        if is_meta(name):
            if is_twin(name):
                notice_once("twins", f"shard {self._shown}: {name!r} and other files that a Mac put beside those it packed are left out")
            return None
        if ".." in name.split("/"):
            notice_once("dots", f"a tar member is named {name!r}; its key keeps the '..' as in webdataset, so build no path from keys")
        if self._rename:
            name = self._rename(name)
        return name if self._select is None or self._select(name) else None


def _learn_suffix(ending: bytes) -> str:
    """A sample's key for what follows the first dot of a name; "" where it takes a closer look: a dot in a folder's name, reserved keys."""
    suffix = ending.decode(ENCODING, "surrogateescape").lower()
    if b"/" in ending or not suffix or suffix in RESERVED:
        return ""
    if len(_SUFFIXES) < _KNOWN_MOST:
        _SUFFIXES[ending] = suffix = sys.intern(suffix)
    return suffix


def _forget(key: bytes) -> None:
    """No more keys are compared with."""


def reads_again(stream: Any) -> Optional[Callable[[int, int], bytes]]:
    """Reads ``size`` bytes at ``at`` of ``stream``, which is at its first byte, and leaves its place; None where it cannot."""
    again: Any = getattr(stream, "again", None)
    if again is not None:
        return again  # type: ignore[no-any-return]
    try:
        return partial(_sought, stream) if stream.seekable() and stream.tell() == 0 else None
    except (AttributeError, OSError, ValueError):
        return None


def _sought(stream: Any, at: int, size: int) -> bytes:
    place = stream.tell()
    try:
        stream.seek(at)
        return bytes(stream.read(size))
    finally:
        stream.seek(place)


def _is_whole(stream: Any) -> bool:
    """Whether the stream's end is certainly the shard's: it is a local file, or gave every byte of its announced length."""
    return isinstance(stream, (io.BufferedReader, io.FileIO, io.BytesIO)) or bool(getattr(stream, "whole", False))
