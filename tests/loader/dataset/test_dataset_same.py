"""Everything that is not named as different in docs/loader.md is the same: random tars, random arguments, both data sets side by side."""

from __future__ import annotations

import io
import sys
import tarfile
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.lengths import examples

import forebay_loader as fb

wds = pytest.importorskip("webdataset")

LATER = hasattr(wds.WebDataset, "create_url_iterator")  # 1.x
KEYS = st.sampled_from(["a", "b", "dir/a", "dir.x/b", "c.d", "__meta__", "é", ".hidden", "noext"])
SUFFIXES = st.sampled_from(["txt", "TXT", "json", "seg.png", "cls", ""])
MEMBERS = st.lists(st.tuples(KEYS, SUFFIXES), max_size=12)
SHARDS = st.lists(MEMBERS, min_size=1, max_size=6)
# webdataset leaves local files to the garbage collector
pytestmark = [pytest.mark.webdataset, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(autouse=True)
def quiet(alone: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened = weakref.WeakSet[Any]()

    def noted(*args: Any, **kwargs: Any) -> Any:
        file = open(*args, **kwargs)  # noqa: SIM115
        opened.add(file)
        return file

    for name in ("webdataset.gopen", "webdataset.cache"):
        monkeypatch.setattr(sys.modules[name], "open", noted, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        for file in list(opened):  # an example that is remembered may hold some for longer: the next test would be blamed
            file.close()


def tar(members: list[tuple[str, str]], number: int) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as out:
        for at, (key, suffix) in enumerate(members):
            entry = tarfile.TarInfo(f"{key}.{suffix}" if suffix else key)
            content = f"{number}/{at}".encode() * (at + 1)
            entry.size = len(content)
            out.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def outcome(made: Callable[[], Any], take: int = 400) -> Any:
    """What a data set yields over two passes, or the kind of error that ends it."""
    found: list[Any] = []
    try:
        data = made()
        for _ in range(2):
            for sample in data:
                found.append(sample)
                if len(found) > take:
                    return found
    except Exception as error:
        return found, type(error).__name__
    return found


def passes_over(error: Exception) -> bool:
    return True


def stops(error: Exception) -> bool:
    return False


def not_json(name: str) -> bool:
    return not name.endswith(".json")


def upper(name: str) -> str:
    return name.replace("a", "A")


ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "handler": st.sampled_from([passes_over, stops]),
        "shardshuffle": st.sampled_from([False, 0]),
        "select_files": st.just(not_json),
        "rename_files": st.just(upper),
        "repeat": st.booleans(),
        "verbose": st.just(False),
        "nodesplitter": st.sampled_from([wds.split_by_node, iter]),
    },
)
LATER_ARGUMENTS = st.fixed_dictionaries(
    {}, optional={"empty_check": st.booleans(), "workersplitter": st.sampled_from([wds.split_by_worker, iter])}
)


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SHARDS, ARGUMENTS, LATER_ARGUMENTS if LATER else st.just({}))
def test_same_samples(tmp_path: Path, shards: list[Any], how: dict[str, Any], later: dict[str, Any]) -> None:
    """Samples, order and kinds of errors over two passes."""
    urls = []
    for number, members in enumerate(shards):
        path = tmp_path / f"{number}.tar"
        path.write_bytes(tar(members, number))
        urls.append(str(path))
    if not LATER:
        how, later = {"handler": wds.reraise_exception, **how}, {"empty_check": False}
    theirs = {name: value for name, value in {**how, **later}.items() if LATER or name in how}
    assert outcome(lambda: fb.WebDataset(urls, **how, **later)) == outcome(lambda: wds.WebDataset(urls, **theirs))


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    """Twenty shards of three samples."""
    for number in range(20):
        (tmp_path / f"{number:02d}.tar").write_bytes(tar([(f"{number}-{at}", "txt") for at in range(3)], number))
    return [str(tmp_path / f"{number:02d}.tar") for number in range(20)]


def keys(data: Any) -> list[str]:
    return [sample["__key__"] for sample in data]


@pytest.mark.parametrize("size", [3, 7, 100, True])
def test_detshuffle_is_webdatasets(shards: list[str], size: Any) -> None:
    """detshuffle=True: webdataset's order, pass after pass."""
    seed = {"seed": 5} if LATER else {}
    ours = fb.WebDataset(shards, shardshuffle=size, detshuffle=True, seed=5 if LATER else None)
    theirs = wds.WebDataset(shards, shardshuffle=size, detshuffle=True, **seed)
    for _ in range(3):
        assert keys(ours) == keys(theirs)


def test_explicit_stages_are_webdatasets(shards: list[str]) -> None:
    """A pipeline of explicit stages keeps its order, shuffles included."""

    def made(stage: Any) -> Any:
        return wds.DataPipeline(
            wds.SimpleShardList(shards, seed=3),
            wds.split_by_node,
            wds.split_by_worker,
            wds.detshuffle(8, 4, 1),
            stage,
            wds.detshuffle(9, 4, 2),
        )

    ours, theirs = made(fb.tarfile_to_samples()), made(wds.tarfile_to_samples())
    for _ in range(2):
        assert keys(ours) == keys(theirs)


def test_a_source_of_its_own(shards: list[str]) -> None:
    """A shard list in place of URLs is the source, as 0.2.86 has it."""
    made = fb.WebDataset(wds.SimpleShardList(shards))
    assert keys(made) == keys(wds.DataPipeline(wds.SimpleShardList(shards), wds.tarfile_to_samples()))


@pytest.mark.skipif(not LATER, reason="webdataset reads folders since 1.0")
def test_a_folder(shards: list[str]) -> None:
    """A folder stays webdataset's: here it takes the files away as it goes."""
    folder = str(Path(shards[0]).parent) + "/"
    made = fb.WebDataset(folder, mode="unlink", ahead=4)
    made.pipeline[0].poll, made.pipeline[0].pattern = None, "*.tar"  # its own pattern has braces, which glob does not know
    assert len(keys(made)) == 60
    assert list(Path(folder).glob("*.tar*")) == []


def test_lists_without_a_rest(shards: list[str]) -> None:
    """listed(partial=False) leaves the rest out, under both versions."""
    assert [len(samples) for samples in fb.WebDataset(shards).listed(7, partial=False)] == [7] * 8


def test_positional_arguments_follow_the_version(shards: list[str]) -> None:
    """What is given by position means what it means in the installed webdataset."""
    third = ("resampled",) if LATER else (False, 0)
    assert len(keys(fb.WebDataset(shards, wds.warn_and_continue, *third).slice(5))) == 5
    with pytest.raises(TypeError, match="by position"):
        fb.WebDataset(shards, *[None] * 30)


FLUENT: dict[str, Callable[[Any], Any]] = {
    "batched": lambda data: data.decode().to_tuple("__key__", "txt").batched(7, partial=False),
    "unbatched": lambda data: data.decode().to_tuple("__key__", "txt").batched(7).unbatched(),
    "listed": lambda data: data.listed(4) if LATER or isinstance(data, fb.WebDataset) else data.batched(4, collation_fn=None),
    "log_keys": lambda data: data.log_keys(),
    "map": lambda data: data.map(len),
    "map_dict": lambda data: data.map_dict(txt=len),
    "map_tuple": lambda data: data.to_tuple("txt", "__key__").map_tuple(len, str.upper),
    "select": lambda data: data.select(lambda sample: sample["__key__"].endswith("1")),
    "slice": lambda data: data.slice(3, 30, 4),
    "rename": lambda data: data.rename(text="txt"),
    "rename_keys": lambda data: data.rename_keys(("*.text", "*.txt")) if not LATER else data.rename_keys(text="txt"),
    "extract_keys": lambda data: data.extract_keys("*.txt"),
    "xdecode": lambda data: data.xdecode(),
    "mcached": lambda data: data.mcached(),
    "shuffle": lambda data: data.shuffle(0),
    "repeat": lambda data: data.repeat(3),
    "with_epoch": lambda data: data.with_epoch(130),
}


@pytest.mark.parametrize("stage", sorted(FLUENT))
def test_fluent_stages(shards: list[str], stage: str) -> None:
    """Each stage gives what it gives behind webdataset's own data set."""
    ours, theirs = (FLUENT[stage](made(shards, shardshuffle=False)) for made in (fb.WebDataset, wds.WebDataset))
    assert isinstance(ours, fb.WebDataset)
    assert outcome(lambda: ours) == outcome(lambda: theirs)
