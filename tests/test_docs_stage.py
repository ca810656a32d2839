"""docs/stage.md: its commands are taken, its table of steps is current, its function is a step."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from forebay_stage.command import stage
from forebay_stage.steps import applied, step_table

PAGE = (Path(__file__).parents[1] / "docs" / "stage.md").read_text(encoding="utf-8")


def test_the_steps_are_current() -> None:
    """A row for each ready-made step, as the code tells it."""
    rows = "".join(f"| `{usage}` | {what} |\n" for usage, what in step_table())
    assert f"|---|---|\n{rows}\n" in PAGE


def test_the_commands_are_taken() -> None:
    """Every option in an example exists and takes its value."""
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = block.splitlines()
    assert len(lines) == 5
    for line in lines:
        words = shlex.split(line)
        assert words[:2] == ["forebay", "stage"]
        assert stage.make_context("stage", words[2:]).params["dst"]


def test_every_option_named_exists() -> None:
    """In prose too."""
    known = {option for parameter in stage.params for option in parameter.opts}
    of_others = {"--working-dir", "--allow-origin"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) <= known | of_others


def test_the_function_is_a_step() -> None:
    """It strips a text, and leaves a sample without one out."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    made = [list(applied([names["clean"]], {"__key__": "a", "txt": text})) for text in (b" b ", b" ")]
    assert [[sample["txt"] for sample in samples] for samples in made] == [[b"b"], []]
