"""``forebay try``: some shards read once directly and twice through a sidecar of its own, side by side; nothing of it stays."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import click
import xxhash

from forebay_proxy.cli.client import SidecarClient
from forebay_proxy.cli.options import Seams, config_option, json_option, load_settings, quantity
from forebay_proxy.cli.output import many, notice, say, say_json, show_table
from forebay_proxy.cli.run.join import join
from forebay_proxy.cli.sources import understood
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.errors import ConfigError, ShardNotFound
from forebay_proxy.core.exit_codes import ExitCode, by_signal
from forebay_proxy.core.quantities import format_rate, format_size, parse_size
from forebay_proxy.core.shard import Pin, Shard
from forebay_proxy.wire.protocol.plan import encode

__all__ = ["try_shards"]

_SHARDS, _LIMIT = 4, "200MB"  # enough to see a line's speed, little enough for a metered one
_MOST_S = 60.0  # of direct reading: a slow origin is measured by what came until then
_ROOM_BYTES = 128_000_000  # beside the shards: segments in the air, and the index
_RETRY_S, _END_S = 30.0, 10.0
_READER = "forebay-try/0/0/0"
# What a person's settings say of how origins are reached; the rest is for a sidecar that stays.
_KEPT = (
    "strict_origins", "allow_profile", "gs_endpoint", "gs_anonymous", "pass_header", "secret_param", "origin_digests",
    "origin_connections", "connect_timeout_s", "idle_timeout_s",
)  # fmt: skip


@dataclass(frozen=True)
class _Piece:
    """The first ``size`` bytes of a shard, all of them if it is ``whole``, and their digest (XXH3, 128 bits, hexadecimal)."""

    shard: Shard
    size: int
    whole: bool
    digest: str


@dataclass(frozen=True)
class _Pass:
    """One reading of all pieces; ``same``: each of them had the bytes that the first reading had."""

    name: str
    seconds: float
    bytes_s: float
    origin_bytes: int
    same: bool = True


def _limit(text: str) -> int:
    if size := parse_size(text):
        return size
    raise ValueError(f"{text!r} is no byte at all; write 200MB")


@click.command("try")
@click.argument("urls", nargs=-1, required=True)
@click.option("--shards", type=click.IntRange(min=1), default=_SHARDS, show_default=True, help="Read the first N of them.", metavar="N")
@click.option(
    "--limit",
    callback=quantity(_limit),
    default=_LIMIT,
    show_default=True,
    metavar="SIZE",
    help="Read at most so many bytes each time.",
)
@json_option
@config_option
@click.pass_obj
def try_shards(seams: Seams, /, urls: tuple[str, ...], shards: int, limit: int, as_json: bool, config: Path | None) -> int:
    """Read some of your shards directly, then twice through Forebay, and print how fast each was.

    \b
    Examples:
      forebay try 's3://bucket/train-{000000..000999}.tar'
      forebay try 'pipe:curl -sL -H "Authorization: Bearer …" https://host/{000..099}.tar' --limit 1GB

    URLS are URLs, brace patterns or 'pipe:' commands. Nothing is written to the origin, and nothing stays here: the sidecar is one of its
    own, with a cache in a temporary directory (TMPDIR), and both are gone at the end. The hosts you name may be reached, loopback too.
    Direct reading is one plain reader: a connection at a time, at most a minute. Through Forebay one reader reads in the same order, with a
    plan. Exit code 1: the bytes were not the same each time.
    """
    sources = list(islice(understood(urls), shards))
    if not sources:
        raise ConfigError("the pattern stands for no URL", next_step="name one shard")
    asked = [Shard.of(source.url, source.headers) for source in sources]
    settings = load_settings(_reaching(asked), config)
    with _ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="forebay-try-") as place:
        _check_room(Path(place), limit)
        tell: Callable[[str], None] = (lambda text: None) if as_json else notice
        tell(f"reading {many(len(asked), 'shard')} directly, at most {format_size(limit)}")
        try:
            pieces, seconds = asyncio.run(_read_directly(asked, settings, limit))
        except ShardNotFound as error:
            error.next_step = error.next_step or "check the URL against the origin"
            raise
        total = sum(piece.size for piece in pieces)
        passes = [_Pass("direct", seconds, _rate(total, seconds), total)]
        with _sidecar(Path(place), settings, limit, seams.program) as sidecar:
            for name in ("through Forebay, cold", "through Forebay, warm"):
                tell(f"reading them {name}")
                passes.append(_read(name, sidecar, pieces))
    same = all(one.same for one in passes)
    if as_json:
        say_json({"shards": len(pieces), "shard_bytes": total, "same_bytes": same, "passes": [asdict(one) for one in passes]})
    else:
        _show(passes, pieces, total)
    return ExitCode.DONE if same else ExitCode.PART_FAILED


async def _read_directly(shards: Sequence[Shard], settings: Settings, most_bytes: int) -> tuple[list[_Piece], float]:
    """Read as a plain reader does, with Forebay out of the way: one connection, one shard after the other, no second try.

    What came until one of the limits was met, and the seconds it took. Raises ``ForebayError`` for a shard that cannot be read.
    """
    from forebay_proxy.origins.survey import origins_for  # noqa: PLC0415  (loads the HTTP client: half a second)

    pieces: list[_Piece] = []
    origins = origins_for(settings, os.environ)
    began = time.monotonic()
    try:
        for shard in shards:
            left = most_bytes - sum(piece.size for piece in pieces)
            if left <= 0 or time.monotonic() - began > _MOST_S:
                break
            digest, size, whole = xxhash.xxh3_128(), 0, True
            async with origins.by_scheme[shard.url.scheme].read(shard, None, Pin()) as body:
                async for chunk in body.chunks:
                    part = memoryview(chunk)[: left - size]
                    digest.update(part)
                    size += len(part)
                    if len(part) < len(chunk) or time.monotonic() - began > _MOST_S:
                        whole = False
                        break
            pieces.append(_Piece(shard, size, whole, digest.hexdigest()))
        return pieces, time.monotonic() - began
    finally:
        await origins.aclose()


def _reaching(shards: Sequence[Shard]) -> dict[str, Any]:
    """Flags that let the named hosts, endpoints and folders be read: who names one on a command line means it."""
    origins, roots = dict[str, None](), dict[str, None]()
    for url in (shard.url for shard in shards):
        if url.scheme in ("http", "https"):
            origins[f"{url.scheme}://{url.authority}"] = None
        elif url.scheme == "file":
            roots[os.path.dirname("/" + url.key())] = None
        elif endpoint := url.options().get("endpoint"):
            origins[endpoint] = None
        elif url.scheme in ("s3", "gs"):
            origins[f"{url.scheme}://{url.authority}"] = None
    return {"allow_origin": tuple(origins), "file_root": tuple(roots)}


def _check_room(place: Path, limit: int) -> None:
    free = shutil.disk_usage(place).free
    if free * 0.9 < limit + _ROOM_BYTES:
        raise ConfigError(
            f"{place.parent} has {format_size(free)} free, and the trial's cache takes up to {format_size(limit + _ROOM_BYTES)}",
            next_step="give a smaller --limit, or set TMPDIR to a folder on a larger disk",
        )


@contextmanager
def _sidecar(place: Path, settings: Settings, limit: int, program: Sequence[str]) -> Iterator[SidecarClient]:
    """A sidecar that nobody else finds, with a cache and a run directory below ``place``; ended before they are removed."""
    (place / "run").mkdir(mode=0o700)
    (place / "forebay.toml").touch(mode=0o600)
    flags: dict[str, Any] = {name: getattr(settings, name) for name in _KEPT}
    flags |= {name: getattr(settings, name) for name in ("allow_origin", "file_root")}
    flags |= {
        "cache_dir": str(place / "cache"), "cache_size": str(limit + _ROOM_BYTES), "port": "0", "socket": "off", "free_floor": "0.01",
        "retry_budget_s": _RETRY_S, "idle_exit_s": _END_S,
    }  # fmt: skip
    ours = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    ours |= {"XDG_RUNTIME_DIR": str(place / "run")}
    with join(ours, program, config=place / "forebay.toml", flags=flags, job="forebay-try") as joined:
        try:
            yield joined.sidecar
        finally:
            if joined.process is not None:
                joined.process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    joined.process.wait(_END_S)
                joined.process.kill()
                joined.process.wait()


def _read(name: str, sidecar: SidecarClient, pieces: Sequence[_Piece]) -> _Pass:
    """Announce the whole shards, as a loader does, then read all pieces in order."""
    before = int(sidecar.status()["bytes"]["origin"])
    began, same = time.monotonic(), True
    whole = [piece.shard for piece in pieces if piece.whole]
    if len({(shard.url.authority, shard.credential.headers) for shard in whole}) == 1:  # headers are for one host
        encoded = encode([shard.url.text() for shard in whole])
        sidecar.announce(_READER, encoded.content_type, encoded.body, whole[0].credential.headers, encoded.query)
    for piece in pieces:
        asked = {"Forebay-Reader": _READER, **dict(piece.shard.credential.headers)}
        if not piece.whole:
            asked["Range"] = f"bytes=0-{piece.size - 1}"
        digest = xxhash.xxh3_128()
        for chunk in sidecar.chunks(piece.shard.url.proxy_path(), asked):
            digest.update(chunk)
        same = digest.hexdigest() == piece.digest and same
    seconds = time.monotonic() - began
    total = sum(piece.size for piece in pieces)
    return _Pass(name, seconds, _rate(total, seconds), int(sidecar.status()["bytes"]["origin"]) - before, same)


def _rate(count: int, seconds: float) -> float:
    return count / max(seconds, 1e-6)


def _show(passes: Sequence[_Pass], pieces: Sequence[_Piece], total: int) -> None:
    rows: list[tuple[str, ...]] = [("", "seconds", "speed", "from the origin")]
    rows += [(one.name, f"{one.seconds:.2f}", format_rate(one.bytes_s), format_size(one.origin_bytes)) for one in passes]
    show_table(rows)
    part = "" if all(piece.whole for piece in pieces) else ", the last in part"
    same = "the same bytes each time" if all(one.same for one in passes) else "NOT the same bytes each time: did a shard change meanwhile?"
    say(f"{many(len(pieces), 'shard')}{part}, {format_size(total)}: {same}")


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Within, SIGTERM leaves by exceptions: the sidecar ends and the directory goes."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(by_signal(number))

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
