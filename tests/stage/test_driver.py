"""The driver: whatever ends it, the same again makes the same bytes."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.scripted_origin import ScriptedOrigin
from support.seams import swapped
from support.stage_work import Inline, files_of, inputs_of, put_shards

from forebay_proxy.wire.commands.sources import Source, parse_source
from forebay_proxy.wire.tar.sample_index import decode
from forebay_stage import task as task_module
from forebay_stage.destination import destination_of
from forebay_stage.driver import Stage, Sums
from forebay_stage.errors import StageBusy, StageError, StageRefused
from forebay_stage.file_destination import FileDestination
from forebay_stage.s3_destination import S3Destination
from forebay_stage.spec import StageSpec

pytestmark = pytest.mark.usefixtures("through_sidecar")
COUNTS = (3, 0, 5, 2)


class Killed(BaseException):
    """As SIGKILL, for all that is between the driver and its destination."""


class Fragile(FileDestination):
    """Dies in front of change number ``left``, and of every one that a dying driver still tries."""

    left = 10**9

    def put_file(self, name: str, path: Path) -> int:
        self._change()
        return super().put_file(name, path)

    def put(self, name: str, data: bytes, *, only_new: bool = False) -> bool:
        self._change()
        return super().put(name, data, only_new=only_new)

    def delete(self, name: str) -> None:
        self._change()
        super().delete(name)

    @staticmethod
    def _change() -> None:
        Fragile.left -= 1
        if Fragile.left < 0:
            raise Killed


@pytest.fixture(scope="module")
def urls(origin: ScriptedOrigin) -> list[str]:
    return put_shards(origin, "set", COUNTS)


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    swapped(monkeypatch, task_module, destination_of=lambda text: Fragile(Path(text)))
    swapped(monkeypatch, os, fsync=lambda _: None)  # no machine dies here, and a disk takes its time
    yield
    Fragile.left = 10**9


def sources_of(urls: list[str]) -> list[Source]:
    return [source for url in urls if (source := parse_source(url))]


def stage(folder: Path, origin: ScriptedOrigin, urls: list[str], engine: Any = None, max_failed: int = 0, **asked: Any) -> Stage:
    return Stage(
        StageSpec(**asked), sources_of(urls), inputs_of(origin, urls), Fragile(folder), str(folder), engine or Inline(),
        max_failed=max_failed, reader="stage/0/0/1.1", progress=lambda *_: None,
    )  # fmt: skip


def keys_in(tar: bytes) -> list[str]:
    return [member.name for member in tarfile.open(fileobj=io.BytesIO(tar))]


WAYS: list[dict[str, Any]] = [
    {},
    {"maps": ("support.stage_work:doubled",), "samples_per_shard": 6, "shuffle": 3},
]


@pytest.mark.parametrize("asked", WAYS, ids=["one phase", "two phases"])
@pytest.mark.usefixtures("fragile")
def test_a_kill_before_any_change_changes_nothing_of_the_output(
    tmp_path: Path, origin: ScriptedOrigin, urls: list[str], asked: dict[str, Any]
) -> None:
    """At each of the destination's changes: the next run ends with the very bytes of a run that nobody killed, and nothing beside them."""
    whole, changes, urls = tmp_path / "whole", 0, urls[:3]
    sums = stage(whole, origin, urls, **asked).run()
    assert sums.samples == sum(json.loads((whole / "sizes.json").read_text()).values()) == sum(COUNTS[:3]) * (2 if "maps" in asked else 1)
    while True:
        folder = tmp_path / str(changes)
        Fragile.left = changes
        try:
            stage(folder, origin, urls, **asked).run()
        except Killed:
            assert changes < 100
        else:
            break
        finally:
            Fragile.left = 10**9
        for lock in folder.glob("_stage/lock.json"):
            lock.unlink()
        if (folder / "sizes.json").exists():
            assert files_of(folder) == files_of(whole)
        again = stage(folder, origin, urls, **asked).run()
        assert again == sums
        assert files_of(folder) == files_of(whole)
        assert not list(folder.glob("_stage/parts/*"))
        changes += 1
    assert changes > 10


def test_what_is_finished_is_not_made_again(tmp_path: Path, origin: ScriptedOrigin, urls: list[str]) -> None:
    """A second run of a whole output does nothing; an output that has gone since is made again, alone."""
    stage(tmp_path, origin, urls).run()
    before = files_of(tmp_path)
    engine = Inline()
    assert stage(tmp_path, origin, urls, engine).run() == Sums(4, 10, sum(map(len, (before[f"{n:05d}.tar"] for n in range(4)))), 0)
    assert engine.done == []
    (tmp_path / "00002.tar").unlink()
    stage(tmp_path, origin, urls, engine).run()
    assert engine.done == ["00002.tar"]
    assert files_of(tmp_path) == before


def test_outputs_beside_their_tables(tmp_path: Path, origin: ScriptedOrigin, urls: list[str]) -> None:
    """Each shard of SRC gives one, also without samples; its index names the samples, sizes and checksums are of all."""
    stage(tmp_path, origin, urls).run()
    files = files_of(tmp_path)
    assert json.loads(files["sizes.json"]) == {"00000.tar": 3, "00001.tar": 0, "00002.tar": 5, "00003.tar": 2}
    assert [key for key, _ in decode(files["00002.tar.index"])] == [f"002-{number:03d}" for number in range(5)]
    assert keys_in(files["00001.tar"]) == []
    checksums = json.loads(files["checksums.json"])
    assert {name: one["bytes"] for name, one in checksums.items()} == {name: len(files[name]) for name in checksums}
    assert len({one["xxh3_128"] for one in checksums.values()}) == 4


def test_a_shuffle_keeps_every_sample(tmp_path: Path, origin: ScriptedOrigin, urls: list[str]) -> None:
    """In another order, for each seed its own."""
    orders = []
    for seed in (1, 2):
        stage(tmp_path / str(seed), origin, urls, shuffle=seed, samples_per_shard=3).run()
        files = files_of(tmp_path / str(seed))
        orders.append([name for shard in sorted(json.loads(files["sizes.json"])) for name in keys_in(files[shard])])
    stage(tmp_path / "plain", origin, urls, samples_per_shard=3).run()
    files = files_of(tmp_path / "plain")
    plain = [name for shard in sorted(json.loads(files["sizes.json"])) for name in keys_in(files[shard])]
    assert plain == sorted(plain)
    assert sorted(orders[0]) == sorted(orders[1]) == plain
    assert orders[0] != orders[1] != plain


def test_compressed_shards_hold_the_same_tar(tmp_path: Path, origin: ScriptedOrigin, urls: list[str]) -> None:
    """In one phase and in two; they have no index, which nobody could seek by."""
    zstd = pytest.importorskip("backports.zstd")
    for name, asked in (("one", {}), ("two", {"bytes_per_shard": 20480})):
        stage(tmp_path / name, origin, urls, **asked).run()
        stage(tmp_path / f"{name}-z", origin, urls, zstd=3, **asked).run()
        plain, packed = files_of(tmp_path / name), files_of(tmp_path / f"{name}-z")
        tars = {f"{file}.zst": data for file, data in plain.items() if file.endswith(".tar")}
        assert {file: zstd.decompress(data) for file, data in packed.items() if file.endswith(".zst")} == tars
        assert packed.keys() == {*tars, "sizes.json", "checksums.json"}


def test_a_bucket_gets_the_bytes_that_a_folder_gets(
    tmp_path: Path, origin: ScriptedOrigin, urls: list[str], on_moto: S3Destination
) -> None:
    """All of them under the same names, in two phases; what others have beside the prefix stays."""
    asked = {"samples_per_shard": 4, "shuffle": 1}
    stage(tmp_path, origin, urls, **asked).run()
    where = f"s3://{on_moto.bucket}/data?endpoint={on_moto.endpoint}"
    Stage(
        StageSpec(**asked), sources_of(urls), inputs_of(origin, urls), on_moto, where, Inline(), max_failed=0, reader="stage/0/0/1.1",
        progress=lambda *_: None,
    ).run()  # fmt: skip
    names = [name for name in on_moto.names() if not name.startswith("_stage/")]
    assert {name: on_moto.get(name) for name in names} == files_of(tmp_path)
    assert list(on_moto.names("_stage/parts/")) == []


def refused(folder: Path, origin: ScriptedOrigin, urls: list[str], error: type[StageError] = StageRefused, **asked: Any) -> str:
    before: Mapping[Path, bytes] = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(error) as caught:
        stage(folder, origin, urls, **asked).run()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return f"{caught.value}; {caught.value.step}"


def test_other_data_is_left_alone(tmp_path: Path, origin: ScriptedOrigin, urls: list[str]) -> None:
    """A folder that no stage began, and a file of somebody else's beside the shards."""
    (tmp_path / "notes.txt").write_text("mine")
    assert "holds other data, as notes.txt" in refused(tmp_path, origin, urls)
    stage(tmp_path / "a", origin, urls).run()
    (tmp_path / "a" / "notes.txt").write_text("mine")
    assert "holds notes.txt, which this stage did not write" in refused(tmp_path / "a", origin, urls)


def test_another_command_is_refused(tmp_path: Path, origin: ScriptedOrigin, urls: list[str]) -> None:
    """It says what differs, and the first one's output stays."""
    stage(tmp_path, origin, urls).run()
    assert "--shuffle none, not 5" in refused(tmp_path, origin, urls, shuffle=5)


def test_two_at_once(tmp_path: Path, origin: ScriptedOrigin, urls: list[str]) -> None:
    """The second is told of the first."""
    lock = destination_of(str(tmp_path)).lock()
    lock.take()
    assert "another stage" in refused(tmp_path, origin, urls, StageBusy)
    lock.release()
    stage(tmp_path, origin, urls).run()


def test_a_shard_of_somebody_else_among_ours(tmp_path: Path, origin: ScriptedOrigin, urls: list[str]) -> None:
    """It would be read as a part of the set: sizes.json is not written until it is gone."""
    with pytest.raises(StageError):
        stage(tmp_path, origin, urls, maps=("support.stage_work:raises_on_two",)).run()
    (tmp_path / "00007.tar").write_bytes(b"x")
    with pytest.raises(StageRefused, match=r"00007\.tar, which this stage did not write"):
        stage(tmp_path, origin, urls, max_failed=2, maps=("support.stage_work:raises_on_two",)).run()
    assert not (tmp_path / "sizes.json").exists()


def test_a_shard_that_is_lost_meanwhile(tmp_path: Path, origin: ScriptedOrigin, urls: list[str]) -> None:
    """No sizes.json names a shard that is not there; the same command makes it again."""

    def lose(_phase: str, done: Sums, _before: Sums, _shards: int) -> None:
        if done.shards == len(urls):
            (tmp_path / "00002.tar").unlink()

    begun = stage(tmp_path, origin, urls)
    begun._progress = lose
    with pytest.raises(StageError, match=r"1 finished shard of 4, as 00002\.tar, cannot be found"):
        begun.run()
    assert not (tmp_path / "sizes.json").exists()
    engine = Inline()
    stage(tmp_path, origin, urls, engine).run()
    assert engine.done == ["00002.tar"]


def test_failures_are_counted_and_listed(tmp_path: Path, origin: ScriptedOrigin, urls: list[str]) -> None:
    """Two of ten fail: one allowed is too few, and the same command with two goes on."""
    failing = {"maps": ("support.stage_work:raises_on_two",)}
    with pytest.raises(StageError, match=r"00\.tar: sample 000-002: .*ValueError: two is too much.*--max-failed is 0"):
        stage(tmp_path, origin, urls, **failing).run()
    with pytest.raises(StageError, match=r"2 samples failed, and --max-failed is 1; last in shard .*02\.tar: sample 002-002"):
        stage(tmp_path, origin, urls, max_failed=1, **failing).run()
    engine = Inline()
    sums = stage(tmp_path, origin, urls, engine, max_failed=2, **failing).run()
    assert (sums.samples, sums.failed, engine.done) == (8, 2, ["00003.tar"])
    rows = [json.loads(line) for line in (tmp_path / "_stage" / "failed.jsonl").read_text().splitlines()]
    assert [(row["key"], row["cause"]) for row in rows] == [(f"{n}-002", "ValueError: two is too much") for n in ("000", "002")]
    assert stage(tmp_path, origin, urls, engine, max_failed=2, **failing).run() == sums


def test_a_torn_shard_is_one_failure(tmp_path: Path, origin: ScriptedOrigin) -> None:
    """It ends the stage by name; where one may fail, the samples before the tear are used, and the tear is listed."""
    urls = put_shards(origin, "torn", (2, 4, 2))
    whole = origin.shards["/torn/01.tar"].states[0].body
    origin.put("/torn/01.tar", whole[: len(whole) // 2 + 700], etag='"torn-1"')
    with pytest.raises(StageError, match=r"/torn/01\.tar: .*unexpected end of data") as raised:
        stage(tmp_path, origin, urls).run()
    assert "--max-failed" in raised.value.step
    assert "handler" not in str(raised.value)
    sums = stage(tmp_path, origin, urls, max_failed=1).run()
    assert (sums.samples, sums.failed) == (6, 1)
    (row,) = (json.loads(line) for line in (tmp_path / "_stage" / "failed.jsonl").read_text().splitlines())
    assert (row["shard"], row["key"], row["step"]) == (urls[1], "after 001-001", "read")


def test_nonsense_of_a_step_is_a_failure(tmp_path: Path, origin: ScriptedOrigin, urls: list[str]) -> None:
    """Of each of its samples."""
    sums = stage(tmp_path, origin, urls, max_failed=10, maps=("support.stage_work:nonsense",)).run()
    assert (sums.samples, sums.failed) == (0, 10)


def test_all_that_is_made_of_a_sample_or_nothing(tmp_path: Path, origin: ScriptedOrigin, urls: list[str]) -> None:
    """Of two samples made of one, no reader would find the second: the first is left out too, and that is one failure."""
    sums = stage(tmp_path, origin, urls, max_failed=10, maps=("support.stage_work:second_hidden",)).run()
    assert (sums.samples, sums.failed) == (0, 10)


def test_a_key_that_comes_twice_into_one_output_names_both(tmp_path: Path, origin: ScriptedOrigin) -> None:
    """Two shards of SRC with the same keys are two outputs, and cannot be one."""
    origin.put("/twin/a.tar", origin.shards["/set/00.tar"].states[0].body, etag='"a"')
    origin.put("/twin/b.tar", origin.shards["/set/00.tar"].states[0].body, etag='"b"')
    twins = [origin.url("/twin/a.tar"), origin.url("/twin/b.tar")]
    stage(tmp_path / "apart", origin, twins).run()
    with pytest.raises(StageError, match="sample 000-000"):
        stage(tmp_path / "one", origin, twins, samples_per_shard=10).run()


def test_a_source_that_changes_meanwhile(tmp_path: Path, origin: ScriptedOrigin) -> None:
    """The shard is named, and what was made of the version before stays unmixed."""
    urls = put_shards(origin, "moving", (2, 2))
    inputs = inputs_of(origin, urls)
    put_shards(origin, "moved", (3, 3))
    origin.put("/moving/01.tar", origin.shards["/moved/01.tar"].states[0].body, etag='"other"')
    begun = Stage(
        StageSpec(), sources_of(urls), inputs, Fragile(tmp_path), str(tmp_path), Inline(), max_failed=0, reader="stage/0/0/1.1",
        progress=lambda *_: None,
    )  # fmt: skip
    with pytest.raises(StageError, match=r'shard .*/moving/01\.tar: was replaced since this stage began \("moving-1" became "other"\)'):
        begun.run()
    assert "was replaced since this stage began" in refused(tmp_path, origin, urls)
