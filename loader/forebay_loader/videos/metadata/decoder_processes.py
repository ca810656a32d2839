"""Clips are looked at in processes of their own: one that kills its decoder ends such a process, and the scan goes on in another.

They are asked and answer in bytes that are checked, and nothing that they say is unpickled: what decodes is what a broken clip may take
over. They are forked from a server that has imported PyAV and does nothing else (``forkserver``): a process with threads forks badly.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Union

from forebay_loader.base.errors import LoaderError, ShardChanged
from forebay_loader.samples.indexed_shard import IndexedShard
from forebay_loader.videos.clip_info import ClipAddress, ClipInfo
from forebay_loader.videos.metadata.record import ClipRecord, packed, unpacked
from forebay_loader.videos.sources.clip_bytes import ClipBytes, MemberClip, ObjectClip

__all__ = ["DecoderDeaths", "DecoderDied", "DecoderProcesses", "serve"]


# Clips by which a decoder died: a scan that goes on, or comes again, passes over them until somebody asks for them.
#
# ``PATH.deaths``: JSON lines, one a clip, for people too. A line that is none, which a kill may leave, is passed over: its clip is tried
# again. A clip of another length or version is another clip.
class DecoderDeaths:
    """Those of the table at ``path``. Nothing is created before something is added. Raises ``OSError`` where it cannot be read."""

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        self.path = Path(f"{os.fspath(path)}.deaths")
        self._known = dict(self._read())

    def of(self, name: str, clip_bytes: int, version: str) -> str:
        """What was said of the clip, "" of one that killed nothing."""
        return self._known.get((name, clip_bytes, version), "")

    def add(self, name: str, clip_bytes: int, version: str, error: str) -> None:
        """Raises ``OSError``."""
        self._known[name, clip_bytes, version] = error
        line = json.dumps({"name": name, "clip_bytes": clip_bytes, "version": version, "error": error})
        with self.path.open("a") as file:
            file.write(f"{line}\n")

    def _read(self) -> "Iterator[tuple[tuple[str, int, str], str]]":
        try:
            lines = self.path.read_text().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                said = json.loads(line)
                yield (said["name"], said["clip_bytes"], said["version"]), str(said["error"])
            except (ValueError, TypeError, KeyError):
                continue


_LOOKED, _FAILED = b"+", b"-"
_TEXT = ("utf-8", "surrogateescape")
_FAULTS = tuple(-number for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT))


class DecoderDied(LoaderError):
    """The process that decoded a clip ended before it answered. ``by_clip``: by a fault of its own, and by no one who stopped it."""

    by_clip = False


class DecoderProcesses:
    """Looks at clips, each thread that asks in a process of its own, which is begun when it is needed. Use ``with``."""

    def __init__(self, context: Any = None, serves: Optional[Callable[[Connection], None]] = None) -> None:
        """``context`` of ``multiprocessing``; ``serves``: what runs in a process."""
        self._context = context or multiprocessing.get_context("forkserver")
        if context is None:
            self._context.set_forkserver_preload(["forebay_loader.videos.metadata.scan", __name__])
        self._serves = serves or serve
        self._own = threading.local()
        self._begun: List[_DecoderProcess] = []

    def __enter__(self) -> DecoderProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._begun:
            process.close()

    def look(self, clip: ClipAddress, audio: bool) -> ClipInfo:
        """What ``clip`` is, with its motion, and its sound if ``audio``. Raises ``DecoderDied``, ``LoaderError`` with what was said."""
        process: Optional[_DecoderProcess] = getattr(self._own, "process", None)
        if process is None:
            process = self._own.process = _DecoderProcess(self._context, self._serves)
            self._begun.append(process)
        try:
            answer = process.answer(json.dumps({**asdict(clip), "audio": audio}).encode())
        except DecoderDied:
            self._own.process = None
            self._begun.remove(process)
            raise
        if answer[:1] != _LOOKED:
            raise LoaderError(answer[1:].decode(*_TEXT))
        return unpacked(memoryview(answer)[1:]).info


class _DecoderProcess:
    def __init__(self, context: Any, serves: Callable[[Connection], None]) -> None:
        self._asks, answers = context.Pipe()
        self._process = context.Process(target=serves, args=(answers,), name="clip-decoder", daemon=True)
        self._process.start()
        answers.close()

    def answer(self, question: bytes) -> bytes:
        with suppress(EOFError, OSError):
            self._asks.send_bytes(question)
            wait([self._asks, self._process.sentinel])
            if self._asks.poll():
                return bytes(self._asks.recv_bytes())
        raise self._died()

    def close(self) -> None:
        """It ends behind its clip."""
        with suppress(OSError):
            self._asks.send_bytes(b"")
        self._asks.close()
        self._process.join()
        self._process.close()

    def _died(self) -> DecoderDied:
        self._asks.close()
        self._process.join()
        code = self._process.exitcode
        self._process.close()
        died = DecoderDied(f"the decoder's process died, {f'signal {-code}' if code < 0 else f'exit code {code}'}")
        died.by_clip = code in _FAULTS
        return died


def serve(asked: Connection) -> None:
    """In such a process: looks at what it is asked, one clip after the other, until it is asked nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal it comes to all; the scan says when to stop
    threading.Thread(target=_end_with_parent, daemon=True).start()
    shards = _LastShard()
    while True:
        question = asked.recv_bytes()
        if not question:
            shards.close()
            return
        asked.send_bytes(_answer(json.loads(question), shards))


def _answer(question: Any, shards: _LastShard) -> bytes:
    audio = question.pop("audio")
    clip = ClipAddress(**question)
    try:
        return _LOOKED + packed(ClipRecord(clip.name, 0, "", _looked_at(clip, shards.of(clip), audio)))
    except LoaderError as error:
        why = str(error)
    except Exception as error:  # what nobody thought of is this clip's all the same
        why = f"{type(error).__name__}: {error}"
    return _FAILED + why.encode(*_TEXT)


def _looked_at(clip: ClipAddress, shard: Optional[IndexedShard], audio: bool) -> ClipInfo:
    """One look at a clip where it lies, a member of the open ``shard`` or an object: what of it is read is what is decoded, and no more."""
    from forebay_loader.videos.metadata.motion import LOOK, measured  # noqa: PLC0415  # PyAV and numpy
    from forebay_loader.videos.sources.clip_source import ClipSource  # noqa: PLC0415

    found: ClipBytes
    if shard is not None:
        part = shard.in_parts(clip.number, lambda _: True)[clip.suffix]
        found = MemberClip(part.read, part.size, clip.name, clip.shard, part.expect)
    else:
        found = lone = ObjectClip(clip.url)
        lone.open()
        if lone.etag != clip.etag:
            lone.close()
            raise ShardChanged(f"{clip.name}: it was replaced while it was scanned")
    with ClipSource(found, size=LOOK) as source:
        return measured(source, audio=audio)


class _LastShard:
    """The shard that was asked for last, open: its clips come one after the other."""

    def __init__(self) -> None:
        self._shard: Optional[IndexedShard] = None

    def of(self, clip: ClipAddress) -> Optional[IndexedShard]:
        """The shard of ``clip``, None of one that lies alone. Raises ``ShardChanged`` where it is of another version by now."""
        if not clip.suffix:
            return None
        if self._shard is None or (self._shard.url, self._shard.etag) != (clip.url, clip.etag):
            self.close()
            self._shard = IndexedShard(clip.url)
            if self._shard.etag != clip.etag:
                raise ShardChanged(f"shard {clip.shard}: it was replaced while it was scanned")
        return self._shard

    def close(self) -> None:
        if self._shard is not None:
            self._shard.close()
        self._shard = None


def _end_with_parent() -> None:
    """A scan that is ended, perhaps with ``kill -9``, leaves nobody behind who decodes."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
