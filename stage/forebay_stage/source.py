"""The samples of SRC's shards, through the sidecar that ``FOREBAY_URL`` names, each in the version that the plan noted."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

from forebay_loader.base.errors import LoaderError, ShardChanged
from forebay_loader.base.timeouts import DEFAULT_LIMITS
from forebay_loader.samples.faults import MEND, READ_ON
from forebay_loader.samples.tar import Samples
from forebay_loader.stream.range_reads import shard_version
from forebay_loader.stream.shard_stream import ShardStream
from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.commands.sources import Source
from forebay_stage.errors import ShardTorn, StageError
from forebay_stage.spec import Input
from forebay_stage.steps import Sample

__all__ = ["noted", "samples_of", "samples_of_piece"]

_MADE_HERE = '"fb-'  # an ETag that the sidecar made; where the origin tells no date either, it is another one each time
_AT_ONCE = 16  # questions for versions: an origin's latency then does not count, and no limit of an origin is near


def noted(sources: Sequence[Source], told: Callable[[int], None]) -> list[Input]:
    """Each shard in its present version; ``told`` hears how many are known. Raises ``StageError`` for the first that is not to be had."""
    found: list[Input] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            for one in pool.map(_noted, sources):
                found.append(one)
                told(len(found))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _noted(source: Source) -> Input:
    try:
        version = shard_version(source, DEFAULT_LIMITS)
    except LoaderError as error:
        raise _failed(error) from None
    nameless = version.etag.startswith(_MADE_HERE) and not version.modified
    return Input(Shard.of(source.url, source.headers).name, "" if nameless else version.etag, version.length)


def samples_of(source: Source, etag: str, reader: str) -> Iterator[Sample]:
    """In their order, one at a time. Raises ``StageError``: the shard is another version, not to be had, or torn (``ShardTorn``)."""
    name = Shard.of(source.url, source.headers).name
    try:
        with ShardStream(source, reader) as stream:
            if etag and stream.etag != etag:
                raise ShardChanged(f"shard {name}: was replaced since this stage began ({etag} became {stream.etag or 'none'})")
            yield from Samples().read([{"url": name, "stream": stream}])
    except tarfile.ReadError as error:
        raise _torn(error) from None
    except LoaderError as error:
        raise _failed(error) from None
    except ValueError as error:  # a name twice in one sample, as webdataset says it
        raise StageError(f"shard {name}: {error.args[0]}", next_step="write the shard anew, and stage it to another DST") from None


def samples_of_piece(name: str, content: bytes) -> Iterator[Sample]:
    """Of some neighbouring samples' tar, cut out of the part ``name``."""
    try:
        yield from Samples().read([{"url": name, "stream": BytesIO(content + bytes(1024))}])
    except tarfile.ReadError as error:
        raise _torn(error) from None


def _torn(error: Exception) -> ShardTorn:
    """With another advice than the loader's, which is for trainings."""
    said = str(error.args[0])
    for advice in (MEND, READ_ON):
        said = said.partition(f". {advice}")[0]
    return ShardTorn(said)


def _failed(error: Exception) -> StageError:
    step = "stage SRC as it is now to another DST: one output must not mix two versions" if isinstance(error, ShardChanged) else ""
    return StageError(str(error.args[0]), next_step=step)
