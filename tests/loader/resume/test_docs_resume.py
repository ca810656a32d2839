"""docs/resume.md says what the code does: the stages that are known, the sizes of states, the names it uses."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import pytest

import forebay_loader as fb
from forebay_loader.resume import known_stages

pytest.importorskip("webdataset")
pytestmark = pytest.mark.webdataset

PAGE = (Path(__file__).parents[3] / "docs" / "resume.md").read_text("utf-8")


def test_the_stages_that_are_known() -> None:
    """Those that give one for one by name, and all of them in the paragraph."""
    told = PAGE.partition("<!-- one for one -->")[2].partition("<!-- end -->")[0]
    assert sorted(re.findall(r"`(\w+)`", told)) == sorted(known_stages._ONE_FOR_ONE)
    paragraph = PAGE.partition("Known stages are")[2].partition("\n\n")[0]
    assert {name.lstrip("_") for name in known_stages._KINDS} - set(re.findall(r"`([\w.]+)`", paragraph)) == set()


def test_every_name_is_there() -> None:
    """``fb.something`` in the page is a public name."""
    assert [name for name in set(re.findall(r"\bfb\.(\w+)", PAGE)) if not hasattr(fb, name)] == []


@pytest.mark.once
@pytest.mark.parametrize("buffer", [1, 1000])
def test_how_large_a_state_is(tmp_path: Path, buffer: int) -> None:
    """As measured for the table, within a tenth: a state that grows is noticed."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for number in range(100):
            tar.addfile(tarfile.TarInfo(f"{number:03d}.txt"))
    for shard in range(70):
        (tmp_path / f"{shard:03d}.tar").write_bytes(made.getvalue())
    data = fb.WebDataset(f"{tmp_path}/{{000..069}}.tar", shardshuffle=True).shuffle(buffer)
    samples = iter(data)
    for _ in range(6000):
        next(samples)
    row = re.search(rf"^\| {'none' if buffer == 1 else f'{buffer:,}'} \| ([\d.]+) kB \| ([\d.]+) kB \|$", PAGE, re.MULTILINE)
    assert row is not None
    state = data.state_dict()
    sizes = [len(json.dumps(each)) / 1000 for each in (state, fb.merge_states([state]))]
    assert sizes == pytest.approx([float(told) for told in row.groups()], rel=0.1)
