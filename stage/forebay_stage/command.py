"""``forebay stage``: read a data set through the sidecar, transform its samples, and write it as shards somewhere else."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from forebay_proxy.cli.client import SidecarClient
from forebay_proxy.cli.options import Seams, from_option, json_option, quantity, url_option
from forebay_proxy.cli.output import many, notice, say, say_json
from forebay_proxy.cli.progress import ProgressView
from forebay_proxy.cli.run.env import fresh_job
from forebay_proxy.cli.run.join import Joined, join
from forebay_proxy.cli.run.run import Watch
from forebay_proxy.cli.sources import named_texts, understood
from forebay_proxy.core.errors import ConfigError, ForebayError
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.core.quantities import format_duration, format_size, parse_size
from forebay_proxy.core.shard import Shard, shown
from forebay_proxy.wire.commands.sources import Source
from forebay_proxy.wire.protocol.plan import ReaderName, encode
from forebay_stage.errors import StageBusy, StageError, StageRefused
from forebay_stage.spec import StageSpec

if TYPE_CHECKING:
    from forebay_stage.driver import Sums
    from forebay_stage.engine_local import Engine

__all__ = ["stage"]

_MOST_AHEAD = 100_000  # shards that are announced: 10 MB of URLs, and far beyond what any window reaches
_LOOK_S = 1.0
_NAMED = 3  # failures that a dry run shows


@click.command()
@click.argument("src", nargs=-1, required=True)
@click.argument("dst")
@from_option
@click.option(
    "--map", "maps", multiple=True, metavar="STEP",
    help="package.module:function of one sample, or a ready-made step, as resize,side=256. In their order; may be repeated.",
)  # fmt: skip
@click.option("--samples-per-shard", type=click.IntRange(min=1), metavar="N", help="Re-shard: so many samples in each output shard.")
@click.option(
    "--bytes-per-shard", callback=quantity(parse_size), metavar="SIZE", help="Re-shard: so large is the tar of an output shard at most."
)
@click.option("--shuffle", type=int, metavar="SEED", help="Shuffle all samples of the set; the seed says how.")
@click.option(
    "--zstd",
    type=click.IntRange(1, 19),
    is_flag=False,
    flag_value=3,
    metavar="[LEVEL]",
    help="Compress output shards (.tar.zst); 3 if bare.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="What runs the tasks: processes here, or a Ray cluster.",
)
@click.option("--address", metavar="A", help="Of the Ray cluster.  [default: RAY_ADDRESS, else what ray.init() finds or starts]")
@click.option("--processes", type=click.IntRange(min=1), metavar="N", help="At once.  [default: one a core; with Ray, all that it has]")
@click.option(
    "--max-failed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Samples that may fail before the stage ends; a shard whose tar is cut or broken counts as one.",
)
@click.option("--dry-run", is_flag=True, help="Try three shards, say what the whole would take, and write nothing.")
@click.option("--quiet", is_flag=True, help="No progress.")
@json_option
@url_option
@click.pass_obj
def stage(
    seams: Seams, /, *, src: tuple[str, ...], dst: str, lists: tuple[str, ...], maps: tuple[str, ...], samples_per_shard: int | None,
    bytes_per_shard: int | None, shuffle: int | None, zstd: int | None, engine: str, address: str | None, processes: int | None,
    max_failed: int, dry_run: bool, quiet: bool, as_json: bool, url: str | None,
) -> int:  # fmt: skip
    """Read the shards SRC through Forebay, transform their samples, and write them as shards to DST, with sizes.json and checksums.json.

    \b
    Examples:
      forebay stage 's3://far/laion-{000..999}.tar' /nvme/laion --map resize,side=256
      forebay stage shards.txt s3://near/set --samples-per-shard 10000 --shuffle 7
      forebay stage 'https://host/{00..99}.tar' s3://near/set --map mine.steps:clean --max-failed 100
      forebay stage 's3://far/{000..999}.tar' s3://near/set --map resize,side=256 --dry-run
      forebay stage shards.txt s3://near/set --map resize,side=256 --engine ray --address 10.0.0.5:6379

    SRC are URLs, brace patterns, 'pipe:' commands, or files of them. DST is s3://bucket/prefix or a folder. They are read through this
    node's sidecar, which is started if there is none. The same command again goes on where a stage ended, whatever ended it: the output
    has the same bytes as that of one run. sizes.json is written last. Exit code 1 when it ended before that.

    With --engine ray each node reads through a sidecar of its own. What --map names must be importable there, and DST must be the same
    place for all.
    """
    if samples_per_shard is not None and bytes_per_shard is not None:
        raise click.UsageError("--samples-per-shard and --bytes-per-shard: an output shard goes by one of them")
    if address is not None and engine != "ray":
        raise click.UsageError("--address is of a Ray cluster: add --engine ray")
    spec = StageSpec(maps, samples_per_shard, bytes_per_shard, shuffle, zstd)
    sources = _named(src, lists)
    _check(spec, dst, engine)
    job = fresh_job(os.environ, socket.gethostname(), os.getpid())
    with _led(seams, url, job) as joined, ProgressView(quiet=quiet, as_json=as_json) as view:
        reader = str(ReaderName(job, "0", "0", f"{os.getpid()}.1"))
        try:
            if dry_run:
                return _tried(sources, spec, processes or _cores(), reader, view, as_json=as_json)
            made = _engine(engine, address, processes, job)
            sums = _run(sources, spec, dst, made, max_failed, reader, joined, view, announces=engine == "local")
        except (StageBusy, StageRefused) as error:
            error.next_step = error.step
            raise
        except StageError as error:
            notice(f"{error}; {error.step}")
            return ExitCode.PART_FAILED
        except KeyboardInterrupt:
            notice(f"stopped: what is finished stays at {dst}, and the same command goes on with the rest")
            raise
    _say_end(sums, dst, as_json=as_json)
    return ExitCode.DONE


def _named(src: Sequence[str], lists: Sequence[str]) -> list[Source]:
    sources = list(understood(named_texts(src, lists)))
    if not sources:
        raise click.UsageError("SRC names no shard")
    seen: set[str] = set()
    for source in sources:
        if (name := Shard.of(source.url, source.headers).name) in seen:  # two signatures of one object are one shard
            raise ConfigError(f"SRC names {shown(name)} twice", next_step="name each shard once: its samples would come twice")
        seen.add(name)
    return sources


# Imported inside, here and below: steps bring pictures and videos, a destination boto3; the list of verbs needs neither.


def _check(spec: StageSpec, dst: str, engine: str) -> None:
    """Raises ``ConfigError`` for a step, a destination or an engine that cannot be, before anything is asked for."""
    from forebay_stage.destination import destination_of  # noqa: PLC0415
    from forebay_stage.engine_ray import ray_module  # noqa: PLC0415
    from forebay_stage.shard_writer import zstd_module  # noqa: PLC0415
    from forebay_stage.steps import step_of  # noqa: PLC0415

    for text in spec.maps:
        step_of(text)
    if spec.zstd is not None:
        zstd_module()
    destination_of(dst)
    if engine == "ray":
        ray_module()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _engine(engine: str, address: str | None, processes: int | None, job: str) -> Engine:
    from forebay_stage.engine_local import LocalEngine  # noqa: PLC0415
    from forebay_stage.engine_ray import RayEngine  # noqa: PLC0415

    return RayEngine(address, processes, job) if engine == "ray" else LocalEngine(processes or _cores())


@contextmanager
def _led(seams: Seams, url: str | None, job: str) -> Iterator[Joined]:
    """The sidecar, where the loader finds it: here, and in the processes that are started. One that is lost is started again."""
    before = dict(os.environ)
    with join(before, seams.program, url=url, job=job) as joined, _watched(joined, seams, before, job):
        os.environ["FOREBAY_URL"] = joined.url
        try:
            yield joined
        finally:
            if "FOREBAY_URL" in before:
                os.environ["FOREBAY_URL"] = before["FOREBAY_URL"]
            else:
                del os.environ["FOREBAY_URL"]


@contextmanager
def _watched(joined: Joined, seams: Seams, environ: Mapping[str, str], job: str) -> Iterator[None]:
    directory, ended = joined.sidecar.status().get("cache_dir"), threading.Event()

    def again() -> Joined:
        return join(environ, seams.program, flags={"port": urlsplit(joined.url).port, "cache_dir": directory}, job=job)

    with closing(Watch(joined, joined.hold or joined.sidecar.hold(job), again if directory and joined.how != "named" else None)) as watch:

        def look() -> None:
            while not ended.wait(_LOOK_S):
                watch.look()

        looking = threading.Thread(target=look, name="forebay-stage-sidecar", daemon=True)
        looking.start()
        try:
            yield
        finally:
            ended.set()
            looking.join()


def _run(
    sources: Sequence[Source], spec: StageSpec, dst: str, engine: Engine, max_failed: int, reader: str, joined: Joined, view: ProgressView,
    *, announces: bool,
) -> Sums:  # fmt: skip
    """``announces``: this node's sidecar is the one that will be read through."""
    from forebay_stage.destination import destination_of  # noqa: PLC0415
    from forebay_stage.driver import Stage  # noqa: PLC0415
    from forebay_stage.source import noted  # noqa: PLC0415

    inputs = noted(sources, lambda known: view.tasks(known, len(sources), 0, f"asked the origin about {known} of {len(sources)} shards"))
    where = dst if "://" in dst else os.path.abspath(dst)  # a step may change its process's folder
    return Stage(
        spec, sources, inputs, destination_of(where), where, engine, max_failed=max_failed, reader=reader,
        progress=_progress(view), ahead=(lambda coming: _announce(joined.sidecar, reader, coming)) if announces else lambda _: None,
    ).run()  # fmt: skip


def _announce(sidecar: SidecarClient, reader: str, coming: Sequence[Source]) -> None:
    """What is read next, so that it is fetched before a task asks for it. It is fetched then in any case, so trouble is only said."""
    credentials = {source.headers for source in coming}
    if len(credentials) != 1:
        return  # headers are of one host: an announcement must not carry them to another
    encoded = encode([source.url.text() for source in coming[:_MOST_AHEAD]])
    try:
        sidecar.announce(reader, encoded.content_type, encoded.body, credentials.pop(), encoded.query)
    except ForebayError as error:
        notice(f"nothing is fetched ahead: {error}")


def _progress(view: ProgressView) -> Callable[[str, Sums, Sums, int], None]:
    begun: dict[str, float] = {}

    def show(phase: str, done: Sums, before: Sums, shards: int) -> None:
        seconds = max(0.001, time.monotonic() - begun.setdefault(phase, time.monotonic()))
        rate = (done.samples - before.samples) / seconds
        failed = f", {done.failed} failed" if done.failed else ""
        told = f"{phase}: {done.shards} of {shards} shards, {rate:,.0f} samples/s, {format_size(done.bytes)}{failed}"
        view.tasks(done.shards, shards, before.shards, told)

    return show


def _say_end(sums: Sums, dst: str, *, as_json: bool) -> None:
    if as_json:
        table: dict[str, Any] = {"shards": sums.shards, "samples": sums.samples, "bytes": sums.bytes, "failed": sums.failed}
        say_json({"event": "end", **table, "destination": dst})
        return
    failed = f"; {many(sums.failed, 'sample')} failed, named in _stage/failed.jsonl there" if sums.failed else ""
    say(f"{many(sums.samples, 'sample')} in {many(sums.shards, 'shard')}, {format_size(sums.bytes)}, at {dst}{failed}")


def _tried(sources: Sequence[Source], spec: StageSpec, processes: int, reader: str, view: ProgressView, *, as_json: bool) -> int:
    from forebay_stage.dry_run import dry_run  # noqa: PLC0415
    from forebay_stage.source import noted  # noqa: PLC0415

    inputs = noted(sources, lambda known: view.tasks(known, len(sources), 0, f"asked the origin about {known} of {len(sources)} shards"))
    found = dry_run(sources, inputs, spec, processes=processes, reader=reader)
    if as_json:
        say_json({
            "event": "dry-run", "tried": found.tried, "shards": found.shards, "samples": found.samples, "bytes": found.bytes,
            "seconds": round(found.seconds, 1), "egress_bytes": found.egress, "failed": [failure._asdict() for failure in found.failed],
        })  # fmt: skip
        return ExitCode.DONE
    for failure in found.failed[:_NAMED]:
        notice(f"sample {failure.key}: step {failure.step}: {failure.cause}")
    failed = f"; {many(len(found.failed), 'sample')} of these failed" if found.failed else ""
    say(f"from {found.tried} of {many(len(sources), 'shard')}{failed}:")
    say(f"about {many(found.samples, 'sample')} in {many(found.shards, 'shard')}, {format_size(found.bytes)}")
    say(f"about {format_duration(found.seconds)} with {processes} processes; {format_size(found.egress)} from the origin")
    return ExitCode.DONE
