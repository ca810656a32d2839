"""How the sidecars of one user on one node are found: a claimed name, and under it a run file, a socket and a log.

The first sidecar claims the name ``forebay``; a second sidecar claims ``forebay-<fingerprint>``, so that processes with the same
credentials find it again. The claim is a ``flock`` held for the sidecar's life: the kernel gives it back whatever the end was, so no two
live sidecars ever share a run file or steal each other's socket. ``wire/runfile.py`` is the reading half that training processes use.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.wire.protocol.runfile import is_private, own_bytes, process_start_time, runtime_directory

__all__ = ["Claim", "RunDirectory", "RunFile", "fingerprint", "process_start_time", "relevant"]

_MAIN = "forebay"
_STARTS_S = 45.0  # a start is ended after 15 s: three of them in a row failed, so ours would too
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class RunFile:
    """What a live sidecar says of itself. ``start_time`` is in clock ticks since boot and tells a used-again ``pid`` apart."""

    url: str
    socket: str | None
    pid: int
    start_time: int
    instance: str
    cache_dir: str
    fingerprint: str
    started_by: Literal["serve", "run"]

    @classmethod
    def parse(cls, text: bytes) -> RunFile | None:
        """None when ``text`` is not a run file of a version we know."""
        try:
            table: dict[str, Any] = json.loads(text)
            found = cls(**{name: table[name] for name in cls.__slots__})
        except (ValueError, TypeError, KeyError):
            return None
        return found if isinstance(found.url, str) and isinstance(found.pid, int) and found.pid > 0 else None

    def is_alive(self) -> bool:
        """Whether the very process that wrote it still runs."""
        return process_start_time(self.pid) == self.start_time


@dataclass(slots=True)
class Claim:
    """A name of ours in the run directory, held until ``close`` or the end of the process."""

    path: Path
    _lock: int | None
    _held: bool = True

    @property
    def socket(self) -> Path:
        """Where the default unix socket of the claimed name lies."""
        return self.path.with_suffix(".sock")

    def announce(self, record: RunFile) -> None:
        """Write the run file, 0600, whole or not at all."""
        _write_private(self.path, json.dumps(asdict(record)).encode())

    def close(self) -> None:
        """Remove the run file, then give the name back; in this order, or a successor's file could be removed. Safe to repeat."""
        if self._held:
            self._held = False
            self.path.unlink(missing_ok=True)
            if self._lock is not None:
                os.close(self._lock)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """``$XDG_RUNTIME_DIR``, else ``/tmp/forebay-<uid>`` (0700, owner checked)."""

    path: Path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> RunDirectory:
        """Found or created. Raises ``ConfigError`` when it belongs to someone else or others may write to it.

        An ``XDG_RUNTIME_DIR`` that cannot be ours (left over from ``sudo -E`` or a login that ended) counts as unset.
        """
        named = Path(runtime_directory(environ))
        if "XDG_RUNTIME_DIR" in environ and not is_private(str(named)):
            named = Path(runtime_directory({}))
        with contextlib.suppress(OSError):  # the next line judges it
            named.mkdir(mode=0o700)
        if not is_private(str(named)):
            raise ConfigError(
                f"run directory {named} belongs to another user or others may write to it",
                next_step="set XDG_RUNTIME_DIR to a directory of your own",
            )
        return cls(named)

    def fingerprint(self, environ: Mapping[str, str]) -> str:
        """16 hex digits that agree for equal credentials, endpoints and upstream proxies; comparable within this directory only."""
        return fingerprint(environ, self._key())

    def live(self) -> list[RunFile]:
        """Every sidecar of ours that is alive, the main one first. Stale, foreign and unreadable files are ignored."""
        paths = [self.path / f"{_MAIN}.json", *sorted(self.path.glob(f"{_MAIN}-*.json"))]
        records = (RunFile.parse(own_bytes(str(path))) for path in paths)
        return [record for record in records if record is not None and record.is_alive()]

    def claim(self, own_fingerprint: str) -> Claim:
        """The first name that no live sidecar holds: ``forebay``, ``forebay-<fingerprint>``, ``forebay-<fingerprint>-<pid>``."""
        for stem in (_MAIN, f"{_MAIN}-{own_fingerprint}"):
            if (lock := self._lock(stem + ".lock")) is not None:
                return Claim(self.path / f"{stem}.json", lock)
        # The pid is in the name, so the file needs no lock.
        return Claim(self.path / f"{_MAIN}-{own_fingerprint}-{os.getpid()}.json", None)

    @contextlib.contextmanager
    def starting(self, within_s: float = _STARTS_S) -> Iterator[int]:
        """A process holds it while it joins or starts a sidecar, so that of many processes that begin at once one starts the sidecar and
        the others join.

        Yields the lock's descriptor; a sidecar that inherits it holds the lock on until it closes it. Raises ``ConfigError`` when others
        do not give it back within ``within_s``.
        """
        until = time.monotonic() + within_s
        while (lock := self._lock("forebay.start.lock")) is None:
            if time.monotonic() > until:
                raise ConfigError(
                    f"another start of a sidecar on this node has not ended for {within_s:g} s",
                    next_step=f"look into {self.path}/forebay.log, or start one with 'forebay serve'",
                )
            time.sleep(_LOOK_S)  # flock knows no time limit, and a lock that a hung sidecar has inherited would keep everybody
        try:
            yield lock
        finally:
            os.close(lock)

    def new_log(self, name: str) -> Path:
        """An empty 0600 log file; the one before it is kept as ``.1``."""
        path = self.path / f"{name}.log"
        with contextlib.suppress(FileNotFoundError):
            path.replace(path.with_suffix(".log.1"))
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        return path

    def _lock(self, name: str) -> int | None:
        """A descriptor that holds the lock, or None when someone else does."""
        # Lock files are never unlinked: someone may hold the old one while another locks a new file of that name.
        descriptor = os.open(self.path / name, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _key(self) -> bytes:
        """The secret that fingerprints are made with; made once, by the first process."""
        path = self.path / f"{_MAIN}.key"
        if len(key := own_bytes(str(path))) != KEY_BYTES:
            _write_private(path, secrets.token_bytes(KEY_BYTES), replace=bool(key))
            key = own_bytes(str(path))
        return key


def _write_private(path: Path, content: bytes, *, replace: bool = True) -> None:
    """Write a 0600 file atomically; with ``replace`` off an existing one wins."""
    descriptor, name = tempfile.mkstemp(prefix=".forebay-", dir=path.parent)  # mkstemp makes it 0600 and ours
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        if replace:
            os.replace(name, path)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


KEY_BYTES = 32

_PREFIXES = ("AWS_", "HF_", "HUGGING_FACE_", "CLOUDSDK_")
_NAMES = frozenset({
    "GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "BOTO_CONFIG", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
})  # fmt: skip
_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy", "no_proxy"})

# Variables of how tools print and report: no such variable changes which bytes are read.
_COSMETIC = frozenset({
    "AWS_PAGER", "AWS_CLI_AUTO_PROMPT", "AWS_DEFAULT_OUTPUT", "AWS_EXECUTION_ENV", "AWS_SDK_UA_APP_ID",
    "HF_HUB_DISABLE_PROGRESS_BARS", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_VERBOSITY", "HF_HUB_ENABLE_HF_TRANSFER", "HF_DATASETS_VERBOSITY",
})  # fmt: skip

# ``forebay run`` adds these for its command; a run inside a run must still find the same sidecar.
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


# A sidecar reads shards with its own environment. A job whose environment differs must not be served by it: it would get shards that others
# may read, or be refused shards that it may read. Values go into an HMAC only: nothing that is stored or shown tells them.


def relevant(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that decide what data is reached, and how. Empty ones count as unset; proxy names are case-blind, lower case wins."""
    found: dict[str, str] = {}
    for name, value in sorted(environ.items()):  # upper case sorts first, so lower case overrides it, as in curl and aiohttp
        if name.lower() in _PROXIES:
            found[name.lower()] = _no_proxy(value) if name.lower() == "no_proxy" else value
        elif (name.startswith(_PREFIXES) or name in _NAMES) and name not in _COSMETIC:
            found[name] = value
    return {name: value for name, value in found.items() if value}


def fingerprint(environ: Mapping[str, str], key: bytes) -> str:
    """16 hex digits: HMAC-SHA256 with ``key`` (32 random bytes) over names and values. Not comparable between keys."""
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for name, value in sorted(relevant(environ).items()):
        for part in (name, value):
            encoded = part.encode("utf-8", "surrogateescape")
            mac.update(len(encoded).to_bytes(8, "big") + encoded)  # lengths, or ("ab", "c") would equal ("a", "bc")
    return mac.hexdigest()[:16]


def _no_proxy(value: str) -> str:
    hosts = {host.strip().lower() for host in value.split(",")} - _LOOPBACK - {""}
    return ",".join(sorted(hosts))
