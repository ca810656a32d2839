"""Webdataset's own pipelines with their openers replaced: announced, through the sidecar, and otherwise as they were."""

from __future__ import annotations

import gc
import io
import json
import os
import pickle
import tarfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_proxy import FakeServer, Refuse
from support.sidecar import wait_until
from support.tars import expected, tar_shard

import forebay_loader as fb
from forebay_loader.plan.plan_client import set_of
from forebay_loader.stream.webdataset_openers import gopen_module
from forebay_loader.takeover import openers
from forebay_proxy.wire.commands.gopen_rules import gopen_rewrite

wds = pytest.importorskip("webdataset")
from webdataset import cache, shardlists, tariterators  # noqa: E402  # it is there

pytestmark = [pytest.mark.webdataset, pytest.mark.another_python, pytest.mark.usefixtures("shards")]

SHARDS = 5
URLS = f"s3://bucket/{{000..{SHARDS - 1:03d}}}.tar"
KEYS = list(expected(SHARDS))
FROM_CACHE = "cached_url_opener" if hasattr(cache, "cached_url_opener") else "FileCache"


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """All openers replaced for one test; the file that a ``forebay run`` would read afterwards."""
    kinds = [kind for kind in (getattr(cache, name, None) for name in ("StreamingOpen", "FileCache")) if kind]
    before = {kind: kind.__call__ for kind in kinds}
    lists = {kind: kind.__iter__ for kind in (shardlists.SimpleShardList, shardlists.ResampledShards)}
    schemes = dict(gopen_module().gopen_schemes)
    functions = [(tariterators, "url_opener")]
    functions += [(cache, name) for name in ("cached_url_opener", "cached_tarfile_to_samples") if hasattr(cache, name)]
    for module, name in functions:
        monkeypatch.setattr(module, name, getattr(module, name))  # put back at the end
    for module in (gopen_module(), tariterators, cache, shardlists):
        openers.replace_openers(module)
    report = tmp_path / "report"
    report.touch(mode=0o600)
    monkeypatch.setenv("FOREBAY_TAKEOVER_REPORT", str(report))
    monkeypatch.setattr(openers.REPORT, "_pid", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield report
        if FROM_CACHE == "cached_url_opener":
            gc.collect()  # pipes that 0.2.86 leaves open, here where nobody minds
    for kind, call in before.items():
        kind.__call__ = call
    for kind, iterate in lists.items():
        kind.__iter__ = iterate
    fb.disable()
    gopen_module().gopen_schemes.clear()
    gopen_module().gopen_schemes.update(schemes)  # here, not by monkeypatch: that would come after and put ours back


def keys(data: Any) -> list[str]:
    return [sample["__key__"] for sample in data]


def plain(urls: Any = URLS, **how: Any) -> Any:
    return wds.WebDataset(urls, shardshuffle=False, **how)


def stages(urls: Any = URLS, *before: Any, **how: Any) -> Any:
    return wds.DataPipeline(wds.SimpleShardList(urls), *before, wds.tarfile_to_samples(**how))


def announced(proxy: FakeServer) -> list[str]:
    return [shard for told in proxy.plans if told.method in ("PUT", "POST") for shard in json.loads(told.body)["shards"]]


def subjects(proxy: FakeServer) -> list[tuple[str | None, int | None]]:
    """Of each pass: the set and the epoch that its plan told."""
    told = [json.loads(told.body) for told in proxy.plans if told.method == "PUT"]
    return [(one.get("set"), one.get("epoch")) for one in told]


def said(report: Path) -> list[str]:
    return [json.loads(line)["direct"] for line in report.read_text().splitlines()]


@pytest.mark.parametrize("kind", ["WebDataset", "DataPipeline", "cache_dir"])
def test_announced_and_read(proxy: FakeServer, taken: Path, tmp_path: Path, kind: str) -> None:
    """Each kind of pipeline: all samples in order, all shards announced, each opened under its plan's name."""
    data = stages() if kind == "DataPipeline" else plain(cache_dir=str(tmp_path) if kind == "cache_dir" else None)
    assert keys(data) == KEYS
    assert announced(proxy) == [f"s3://bucket/{number:03d}.tar" for number in range(SHARDS)]
    (plan,) = {told.target.removeprefix("/v1/plans/") for told in proxy.plans}
    opened = [request for request in proxy.requests if request.target.startswith("/s3/")]
    assert {request.headers["Forebay-Reader"] for request in opened} == {plan}
    assert proxy.plans[-1].method == "DELETE"
    assert said(taken) == [""]
    assert not [entry for entry in os.listdir(tmp_path) if entry.endswith(".tar")]


@pytest.mark.parametrize("kind", ["WebDataset", "DataPipeline", "cache_dir", "resampled"])
def test_a_plan_tells_set_and_epoch(proxy: FakeServer, tmp_path: Path, kind: str) -> None:
    """The set is the shard list's, however the pipeline was made; from the second pass on a process counts its epochs, and its copy too."""
    kinds = {
        "WebDataset": plain,
        "DataPipeline": lambda: stages(URLS, wds.split_by_worker),
        "cache_dir": lambda: plain(cache_dir=str(tmp_path)),
        "resampled": lambda: wds.WebDataset(URLS, resampled=True, shardshuffle=False).with_epoch(12),
    }
    data = kinds[kind]()
    for one in (data, data, pickle.loads(pickle.dumps(data))):
        assert len(keys(one)) > 0
    name = set_of([f"s3://bucket/{number:03d}.tar" for number in range(SHARDS)])
    assert subjects(proxy) == [(name, None), (name, 1), (name, None)]


@pytest.mark.parametrize("how", [{"shardshuffle": 100}, {"shardshuffle": SHARDS}, {"shardshuffle": 100, "detshuffle": True}])
def test_a_short_list_behind_a_buffer_is_announced_at_once(proxy: FakeServer, how: dict[str, Any]) -> None:
    """The buffer reads it to its end for its first item; that it was a list is seen before."""
    data = iter(wds.WebDataset(URLS, **how))
    next(data)
    wait_until(lambda: proxy.plans)
    assert sorted(announced(proxy)) == [f"s3://bucket/{number:03d}.tar" for number in range(SHARDS)]
    assert len(list(data)) == len(KEYS) - 1


def test_two_pipelines_in_turn_tell_their_own_sets(proxy: FakeServer) -> None:
    """One item of each at a time: no plan is of the other's list."""
    lists = [[f"s3://bucket/{number:03d}.tar" for number in numbers] for numbers in ((0, 1), (2, 3, 4))]
    for _ in zip(plain(lists[0]), plain(lists[1]), strict=False):
        pass
    told = [json.loads(told.body) for told in proxy.plans if told.method == "PUT"]
    assert {one["set"]: set(one["shards"]) <= set(urls) for one, urls in zip(told, lists, strict=True)} == {
        set_of(urls): True for urls in lists
    }


def test_a_source_of_the_scripts_own_tells_no_set(proxy: FakeServer) -> None:
    """A function in place of a shard list, and a mix of two lists: announced, and of no set."""
    urls = [f"s3://bucket/{number:03d}.tar" for number in range(SHARDS)]

    def mixed() -> Iterator[Any]:
        for pair in zip(shardlists.SimpleShardList(urls), shardlists.SimpleShardList(urls[::-1]), strict=True):
            yield from pair

    for source in (lambda: iter([{"url": url} for url in urls]), mixed):
        assert len(keys(wds.DataPipeline(source, wds.tarfile_to_samples()))) > 0
    assert subjects(proxy) == [(None, None)] * 2


def test_lists_that_begin_in_a_pull_or_beside_it() -> None:
    """Each pull has those that began in it alone: not another's, not another thread's, none that was only asked for an iterator."""
    one, other, elsewhere = (shardlists.SimpleShardList(URLS) for _ in range(3))
    with openers.first_pull() as outer:
        with openers.first_pull() as inner:
            list(one)
            begun = iter(other)
        next(begun)
        thread = threading.Thread(target=list, args=(elsewhere,))
        thread.start()
        thread.join()
    assert (inner, outer) == ([one], [other])


def test_leaving_early_withdraws(proxy: FakeServer) -> None:
    """A loop that breaks takes its plan back."""
    samples = iter(plain())
    for _ in range(7):  # into the second shard
        next(samples)
    samples.close()
    del samples
    assert proxy.plans[-1].method == "DELETE"


def test_a_stage_of_ours_announces_alone(proxy: FakeServer) -> None:
    """A pipeline with fb.ahead() in it, in a taken-over process: one plan, not two."""
    assert keys(stages(URLS, fb.ahead(4))) == KEYS
    assert len({told.target for told in proxy.plans}) == 1
    assert announced(proxy) == [f"s3://bucket/{number:03d}.tar" for number in range(SHARDS)]


def test_a_users_own_opener_is_used(proxy: FakeServer, taken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set after the import, as people do: neither served nor announced, though rules of ours would lead it to the sidecar."""
    monkeypatch.setenv("GOPEN_REWRITE", gopen_rewrite(proxy.url))
    opened: list[str] = []

    def own(url: str, mode: str = "rb", bufsize: int = 8192, **options: Any) -> Any:
        opened.append(url)
        return io.BytesIO(tar_shard(int(url[-7:-4])))

    gopen_module().gopen_schemes["s3"] = own
    for data in (plain(), stages()):
        assert keys(data) == KEYS
    assert opened == [f"s3://bucket/{number:03d}.tar" for number in range(SHARDS)] * 2
    assert proxy.requests == []
    assert said(taken) == ["the script has its own opener for s3"]


def test_a_users_own_opener_and_a_cache_dir(proxy: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not ours is copied into the cache_dir, as before."""
    gopen_module().gopen_schemes["s3"] = lambda url, *_, **__: io.BytesIO(tar_shard(int(url[-7:-4])))
    monkeypatch.setattr(cache, "check_tar_format", lambda _: True)  # it would ask the program `file`
    (tmp_path / "copies").mkdir()
    data = plain("s3://bucket/000.tar", cache_dir=str(tmp_path / "copies"))
    if FROM_CACHE == "cached_url_opener":
        data = cache.cached_url_opener([{"url": "s3://bucket/000.tar"}], cache_dir=str(tmp_path / "copies"), validator=lambda _: True)
        assert len(list(data)) == 1
    else:
        assert len(keys(data)) == 5
    assert [path.name for path in (tmp_path / "copies").rglob("*.tar")] == ["000.tar"]
    assert proxy.requests == []


def test_secured_webdataset_reads(proxy: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """WDS_SECURE refuses rewrite rules; ours are not looked at."""
    monkeypatch.setenv("GOPEN_REWRITE", gopen_rewrite(proxy.url))
    utils = getattr(gopen_module(), "utils", None)
    if not hasattr(utils, "enforce_security"):
        pytest.skip("this webdataset has no WDS_SECURE")
    monkeypatch.setattr(utils, "enforce_security", True)
    assert keys(stages()) == KEYS


def test_local_files_are_read_as_before(proxy: FakeServer, taken: Path, tmp_path: Path) -> None:
    """Neither announced nor sent for, and said to be what they are."""
    (tmp_path / "a.tar").write_bytes(tar_shard(0))
    for data in (plain(str(tmp_path / "a.tar")), stages(str(tmp_path / "a.tar"))):
        assert len(keys(data)) == 5
    assert proxy.requests == []
    assert said(taken) == ["local files"]


@pytest.mark.skipif(not hasattr(wds.shardlists, "DirectoryShardList"), reason="this webdataset has no DirectoryShardList")
def test_a_source_that_deletes_what_was_read(proxy: FakeServer, tmp_path: Path) -> None:
    """A shard is gone once the next one is pulled: none is pulled before the one before has been read."""
    for number in range(4):
        (tmp_path / f"{number}.tar").write_bytes(tar_shard(number))
    source = wds.shardlists.DirectoryShardList(f"{tmp_path}/", pattern="*.tar", poll=None, mode="unlink", select="oldest")
    assert sorted(keys(wds.DataPipeline(source, wds.tarfile_to_samples()))) == sorted(expected(4))
    assert list(tmp_path.glob("*.tar*")) == []


def test_writing_stays_webdatasets(proxy: FakeServer, tmp_path: Path) -> None:
    """A ShardWriter and a pipe that takes bytes are nothing of ours."""
    with wds.ShardWriter(str(tmp_path / "out-%03d.tar"), verbose=0) as writer:
        writer.write({"__key__": "a", "txt": "x"})
    with gopen_module().gopen(f"pipe:cat > {tmp_path}/b", "wb") as stream:
        stream.write(b"x")
    with tarfile.open(tmp_path / "out-000.tar") as tar:
        assert tar.getnames() == ["a.txt"]
    assert (tmp_path / "b").read_bytes() == b"x"
    assert proxy.requests == []


@pytest.mark.parametrize("how", ["plain", "stages", "cache_dir"])
def test_handlers_are_asked_where_they_were(proxy: FakeServer, tmp_path: Path, how: str) -> None:
    """A shard that cannot be had: the handler gets the error, and goes on with the rest."""
    proxy.fault("/s3/bucket/001.tar", *[Refuse(404, "gone")] * 12)
    errors: list[Exception] = []

    def told(error: Exception) -> bool:
        errors.append(error)
        return True

    data = stages(handler=told) if how == "stages" else plain(handler=told, cache_dir=str(tmp_path) if how == "cache_dir" else None)
    assert keys(data) == [key for key in KEYS if not key.startswith("001")]
    assert [type(error).__name__ for error in errors] == ["ShardReadError"]
    assert "s3://bucket/001.tar" in str(errors[0])


@pytest.mark.skipif(FROM_CACHE == "FileCache", reason="1.x goes on with the next shard whatever its handler says")
def test_a_handler_that_stops(proxy: FakeServer, tmp_path: Path) -> None:
    """With a cache_dir too, False ends the pass."""
    proxy.fault("/s3/bucket/001.tar", *[Refuse(404, "gone")] * 12)
    assert keys(plain(handler=lambda _: False, cache_dir=str(tmp_path))) == KEYS[:5]


@pytest.mark.parametrize("how", ["plain", "stages", "cache_dir"])
def test_disable_gives_everything_back(proxy: FakeServer, taken: Path, tmp_path: Path, how: str) -> None:
    """fb.disable() in a taken-over process: nothing is announced or read through us any more, not even what we would read."""
    (tmp_path / "a.tar").write_bytes(tar_shard(0))
    (tmp_path / "copies").mkdir()
    fb.disable()
    urls = [f"pipe:cat {tmp_path}/a.tar"] * 3
    if how == "cache_dir":
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(cache, "get_filetype", lambda _: "tar archive")
            found = keys(plain(urls[:1], cache_dir=str(tmp_path / "copies")))
        assert len([path for path in (tmp_path / "copies").rglob("*") if path.is_file()]) == 1
        assert len(found) == 5
    else:
        assert len(keys(plain(urls) if how == "plain" else stages(urls))) == 15
    assert proxy.requests == []
    assert said(taken) == ["fb.disable() was called"]


def test_a_dead_sidecar_is_reported_when_the_shard_is_opened(proxy: FakeServer, taken: Path) -> None:
    """Not when the next one is asked for: an error of this one may end the process before that."""
    with FakeServer().running() as origin:
        origin.put("/a.tar", b"nothing")
        proxy.stop()
        with pytest.raises(tarfile.ReadError):
            next(iter(stages(f"{origin.url}/a.tar")))
        assert said(taken) == ["", "the sidecar did not answer"]


def test_a_refused_file_is_not_a_dead_sidecar(proxy: FakeServer, taken: Path, tmp_path: Path) -> None:
    """Below no configured root it is left to its command; the summary has one reason for the first of them and for the others."""
    for name in ("a.tar", "b.tar"):
        (tmp_path / name).write_bytes(tar_shard(0))
        proxy.fault(f"/file{tmp_path}/{name}", Refuse(403, "outside the directories file URLs may read"))
    assert len(keys(stages([f"pipe:cat {tmp_path}/{name}" for name in ("a.tar", "b.tar")]))) == 10
    assert said(taken) == ["", "the sidecar does not serve file shards"]


def test_an_absent_file_leaves_the_others_to_the_sidecar(proxy: FakeServer, taken: Path, tmp_path: Path) -> None:
    """Programs look for files that need not be there, as timm for its ``_info.json``."""
    proxy.put(f"/file{tmp_path}/b.tar", tar_shard(0))
    assert len(keys(stages([f"pipe:cat {tmp_path}/{name}" for name in ("a.tar", "b.tar")], handler=wds.ignore_and_continue))) == 5
    assert len(proxy.asked(f"/file{tmp_path}/b.tar")) == 1


def test_pipelines_pickle() -> None:
    """What is sent to a spawned worker is webdataset's own classes and names."""
    for data in (plain(), stages()):
        assert keys(pickle.loads(pickle.dumps(data))) == KEYS
    assert b"forebay" not in pickle.dumps(plain())


def test_taken_twice_is_taken_once(proxy: FakeServer) -> None:
    """A .pth and a PYTHONPATH in one process, or a module that is loaded anew."""
    for module in (gopen_module(), tariterators, cache, shardlists):
        openers.replace_openers(module)
    assert keys(plain()) == KEYS
    assert len({told.target for told in proxy.plans}) == 1
