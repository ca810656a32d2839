"""``--map`` as text: functions of the user's, ready-made steps, and what is said of a bad one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forebay_proxy.core.errors import ConfigError
from forebay_stage.steps import applied, step_of, step_table

SAMPLE = {"__key__": "a", "__url__": "s.tar", "jpg": b"picture", "txt": b"text"}


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        step_of(text)
    assert caught.value.step.startswith("write module:function")
    return str(caught.value)


def test_a_function_of_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in the directory where the command runs needs no installation; a dot leads to a method."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("steps_of_mine.py").write_text(
        "class Mine:\n    @staticmethod\n    def upper(sample):\n        sample['txt'] = b'UPPER'\n        return sample\n"
    )
    assert next(applied([step_of("steps_of_mine:Mine.upper")], dict(SAMPLE)))["txt"] == b"UPPER"


def test_a_function_that_cannot_be_had_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No module, no such name, nothing to call, a module that raises: each is told with its cause."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("raising_of_mine.py").write_text("raise RuntimeError('no licence')\n")
    assert "No module named 'no_such_module'" in refused("no_such_module:f")
    assert "has no attribute 'nope'" in refused("os.path:nope")
    assert "sep is str, not a function" in refused("os.path:sep")
    assert "RuntimeError: no licence" in refused("raising_of_mine:f")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sharpen", "no ready-made step of that name"),
        ("", "no ready-made step of that name"),
        ("resize", "one of side, longest, quality or format"),
        ("resize,side=big", "side=big is not a whole number"),
        ("resize,side=-1", "not below 0"),
        ("resize,size=256", "'size'; it is written resize[,side=]"),
        ("resize,256,side=256", "multiple values for argument 'side'"),
        ("resize,format=gif", "format=gif is none of jpg, png, webp"),
        ("resize,quality=101", "quality=101"),
        ("resize,quality=90,format=png", "png has no quality"),
        ("min_side", "missing a required argument: 'pixels'; it is written min_side,pixels="),
        ("min_side,0", "pixels=0 is below 1"),
        ("frames", "either rate or count"),
        ("frames,rate=1,count=8", "either rate or count"),
        ("frames,rate=nan", "either rate or count"),
        ("frames,rate=1e9", "a rate is at most 1000"),
        ("clips,seconds=0", "a number above 0 is wanted"),
        ("clips,seconds=nan", "a number above 0 is wanted"),
        ("require", "such as require,jpg,txt"),
        ("require,", "such as require,jpg,txt"),
    ],
)
def test_a_bad_step_is_answered_with_what_is_wrong(text: str, said: str) -> None:
    """The option and its value, or how the step is written; the next step lists all steps and has an example."""
    assert said in refused(text)


def test_the_next_step_lists_all_steps() -> None:
    """What is printed of a bad ``--map`` has every row of the table."""
    with pytest.raises(ConfigError) as caught:
        step_of("sharpen")
    assert all(usage in caught.value.step and what in caught.value.step for usage, what in step_table())


def test_every_step_has_a_line() -> None:
    """The table has a row for each step, with a whole sentence."""
    rows = dict(step_table())
    assert [usage.split(",")[0].split("[")[0] for usage in rows] == ["resize", "min_side", "frames", "clips", "require"]
    assert all(what.endswith(".") for what in rows.values())


def test_require_leaves_out_what_lacks_a_field() -> None:
    """A sample with all fields passes as it is, another is left out."""
    assert list(applied([step_of("require,jpg,txt")], dict(SAMPLE))) == [SAMPLE]
    assert list(applied([step_of("require,jpg,json")], dict(SAMPLE))) == []


def test_steps_without_pictures_need_no_pillow() -> None:
    """``require`` and the table import neither Pillow nor PyAV nor numpy."""
    code = (
        "import sys; from forebay_stage.steps import step_of, step_table; step_of('require,jpg'); step_table()\n"
        "assert not {'PIL', 'av', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env={"PYTHONPATH": ":".join(sys.path)})


def test_what_a_step_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Pillow, ``resize`` is refused with what to install."""
    monkeypatch.delitem(sys.modules, "forebay_stage.steps.pictures", raising=False)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match="needs PIL") as caught:
        step_of("resize,side=256")
    assert caught.value.step == "pip install 'forebay[stage]'"
