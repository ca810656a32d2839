"""``sizes.json`` is filled part by part, and what somebody else wrote into it is not lost."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forebay_proxy.cli.index.sizes_json import Conflict, SizesJson
from forebay_proxy.core.errors import ConfigError


def test_other_shards_stay(tmp_path: Path) -> None:
    """A part of a set is added to the rest; digits of another tool stay as it wrote them, rights and links too."""
    real, link = tmp_path / "real.json", tmp_path / "sizes.json"
    real.write_text('{"a.tar": "1", "z.tar": 9}')
    real.chmod(0o664)
    link.symlink_to(real)
    assert SizesJson(link).add({"a.tar": 1, "b.tar": 2}) == 1
    assert json.loads(real.read_text()) == {"a.tar": "1", "b.tar": 2, "z.tar": 9}
    assert (link.is_symlink(), real.stat().st_mode & 0o777) == (True, 0o664)


def test_another_count_is_no_news_to_write(tmp_path: Path) -> None:
    """The names may be of another set: the file is left as it is, and the first difference told."""
    path = tmp_path / "sizes.json"
    path.write_text('{"a.tar": 1, "b.tar": "2", "c.tar": 3}')
    with pytest.raises(Conflict, match=r"says 2 samples for b\.tar, and its index has 5, and 1 more differ"):
        SizesJson(path).add({"a.tar": 1, "b.tar": 5, "c.tar": 4})
    assert path.read_text() == '{"a.tar": 1, "b.tar": "2", "c.tar": 3}'


@pytest.mark.parametrize(
    "content", ["[1]", '{"a.tar": "many"}', '{"a.tar": {}}', '{"a.tar": true}', "{", "", "[" * 100_000, '{"a.tar": "' + "9" * 5000 + '"}']
)
def test_what_is_no_table_is_not_overwritten(tmp_path: Path, content: str) -> None:
    """Told before anything is fetched, and again where it came meanwhile."""
    path = tmp_path / "sizes.json"
    path.write_text(content)
    for act in (SizesJson(path).check, lambda: SizesJson(path).add({"a.tar": 1})):
        with pytest.raises(ConfigError, match="no table of samples by file name"):
            act()
    assert path.read_text() == content


def test_no_place_for_it(tmp_path: Path) -> None:
    """A folder, or a file in no folder."""
    for path in (tmp_path, tmp_path / "none" / "sizes.json"):
        with pytest.raises(ConfigError, match="cannot write"):
            SizesJson(path).check()


def test_parts_that_are_counted_at_once_are_all_kept(tmp_path: Path) -> None:
    """What one adds while another has read the file, and has not written it yet."""
    path = tmp_path / "sizes.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda part: SizesJson(path).add({f"{part}-{number}.tar": number for number in range(20)}), range(40)))
    assert len(json.loads(path.read_text())) == 800
    assert os.listdir(tmp_path) == ["sizes.json"]
