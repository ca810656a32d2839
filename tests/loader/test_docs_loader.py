"""docs/loader.md: the arguments that it names exist, and webdataset's recipes run."""

from __future__ import annotations

import importlib
import inspect
import io
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_proxy import FakeServer

import forebay_loader as fb

wds = pytest.importorskip("webdataset")

pytestmark = pytest.mark.webdataset

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "loader.md").read_text()
SHARDS, SAMPLES = 4, 40
URLS = f"s3://bucket/{{0..{SHARDS - 1}}}.tar"


def arguments(of: Any) -> list[str]:
    return [name for name in inspect.signature(of.__init__).parameters if name not in ("self", "positional")]


def test_arguments_of_the_page_exist() -> None:
    """Those of the table, by the names of the signature; ``help(fb.WebDataset)`` has all."""
    table = PAGE.split("\n## Arguments that surprise\n")[1].split("\n\n")[0].strip()
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    named = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
    assert len(named) > 5
    assert named <= set(arguments(fb.WebDataset))


def test_both_versions_arguments_are_taken() -> None:
    """All of the installed webdataset's."""
    assert set(arguments(wds.WebDataset)) <= set(arguments(fb.WebDataset))


def identity(sample: Any) -> Any:
    return sample


def shard(number: int) -> bytes:
    made = io.BytesIO()
    pixels = io.BytesIO()
    image = pytest.importorskip("PIL.Image", reason="the recipes decode pictures")
    image.new("RGB", (2, 2)).save(pixels, "PNG")
    with tarfile.open(fileobj=made, mode="w") as out:
        for sample in range(SAMPLES):
            for suffix, content in (("png", pixels.getvalue()), ("json", b"[%d, %d]" % (number, sample))):
                entry = tarfile.TarInfo(f"{number}-{sample}.{suffix}")
                entry.size = len(content)
                out.addfile(entry, io.BytesIO(content))
    return made.getvalue()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    with FakeServer().running() as server:
        for number in range(SHARDS):
            server.put(f"/s3/bucket/{number}.tar", shard(number))
        monkeypatch.setenv("FOREBAY_URL", server.url)
        yield server


def made_by(text: str) -> dict[str, Any]:
    """The names that the text leaves behind."""
    names: dict[str, Any] = {"wds": wds, "fb": importlib.import_module("forebay_loader"), "urls": URLS, "identity": identity}
    exec(compile(text, "docs/loader.md", "exec"), names)  # the page is ours
    return names


def test_the_recipe_for_pictures_of_several_sizes(tmp_path: Path) -> None:
    """Each batch has one size, and clips of different lengths."""
    clips = pytest.importorskip("support.clips")
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for number, (width, height, frames) in enumerate([(128, 96, 12), (96, 128, 8), (128, 96, 20)]):
            data = clips.rendered(width=width, height=height, frames=frames)
            member = tarfile.TarInfo(f"{number}.mp4")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    (recipe,) = [
        block for block in re.findall(r"```python\n(.*?)```", (DOCS / "batches.md").read_text(), re.S) if 'shape="frames"' in block
    ]
    names: dict[str, Any] = {"fb": fb, "urls": [str(tmp_path / "0.tar")]}
    exec(compile(recipe, "docs/batches.md", "exec"), names)  # the page is ours
    found = [*names["dataset"]]
    assert [batch["frames"].shape for batch in found] == [(2, 10, 96, 128, 3), (1, 4, 128, 96, 3)]
    assert [batch["mask"].sum(1).tolist() for batch in found] == [[6, 10], [4]]


RESAMPLED = """
dataset = fb.WebDataset(urls, resampled=True, shardshuffle=True, cache_dir="./cache", nodesplitter=wds.split_by_node)
dataset = dataset.shuffle(1000).decode("pil").to_tuple("png", "json").map(identity).batched(64)
loader = wds.WebLoader(dataset, batch_size=None, num_workers=2)
loader = loader.unbatched().shuffle(1000).batched(64).with_epoch(10)
"""  # webdataset's own, with our data set


@pytest.mark.filterwarnings("ignore")
def test_the_explicit_recipe(served: FakeServer) -> None:
    """That of the page: every sample once, and the length it was given."""
    (block,) = re.findall(r"```python\n(dataset = wds.DataPipeline.*?)```", PAGE, re.S)
    dataset = made_by(block)["dataset"]
    found = [tuple(label) for _, labels in dataset for label in labels]
    assert sorted(found) == [(number, sample) for number in range(SHARDS) for sample in range(SAMPLES)]
    assert len(dataset) == 10


@pytest.mark.filterwarnings("ignore")
def test_the_resampled_recipe(served: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten full batches from two workers, and no copies."""
    monkeypatch.chdir(tmp_path)
    sizes = [len(labels) for _, labels in made_by(RESAMPLED)["loader"]]
    assert sizes == [64] * 10
    assert not Path("cache").exists()
