"""The README promises what the code does."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from support.cli import verbs as all_verbs

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKING = [*PAGES, *sorted(ROOT.glob("[!R]*.md")), *(ROOT / name / "README.md" for name in ("benchmarks", "grafana", "scripts"))]
OF_VERBS = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("slow", "recipes", "settings", "security"))]
FOREIGN = {
    "--sort", "--dereference", "--hard-dereference",  # of GNU tar
    "--nproc-per-node", "--nnodes", "--nodes", "--ntasks-per-node", "--gpus-per-node",
    "--toml", "--user", "--now", "--network", "--from-literal",
}  # fmt: skip  # of torchrun, Slurm, settings_table, systemctl, docker, kubectl


def test_it_stays_short() -> None:
    """Five minutes: a stranger reads it to its end. Tables of everything are pages of docs/."""
    assert len(README.splitlines()) <= 130


@pytest.mark.parametrize("name", ["parts", "stores"])
def test_the_picture_is_what_its_script_draws(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.py").read_text(encoding="utf-8")
    made: dict[str, Any] = {"__name__": name, "__file__": ""}
    exec(text, made)
    figures = ROOT / "docs" / f"{name}.json"
    drawn = made["drawn"](json.loads(figures.read_text(encoding="utf-8"))) if figures.exists() else made["drawn"]()
    assert (ROOT / "docs" / f"{name}.svg").read_text(encoding="utf-8") == drawn


def test_the_first_screen_is_one_screen() -> None:
    """What a visitor sees without scrolling ends before the first heading of the second part."""
    first = README.split("\n## ", 1)[0].splitlines()
    assert len(first) <= 50


def test_every_link_leads_somewhere() -> None:
    """No page that is pointed to is missing."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^)#: ]+)(#[^)]+)?\)", text)
        assert [link for link, _ in links if not (page.parent / link).exists()] == [], page.name


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_anchor_is_a_heading(page: Path) -> None:
    """Of the page itself or of another one; mentions without a link count too."""
    text = page.read_text(encoding="utf-8")
    named = {("", anchor) for anchor in re.findall(r"\]\(#([^)]+)\)", text)} | set(re.findall(r"([\w./-]+\.md)#([\w-]+)", text))
    targets = [(page.parent / name if name else page, anchor) for name, anchor in sorted(named)]
    lost = [f"{target.name}#{anchor}" for target, anchor in targets if not target.exists() or anchor not in _anchors(target)]
    assert lost == []


def test_headings_are_not_comments_of_programs(tmp_path: Path) -> None:
    """``# words`` within a code block is no place to link to; of two equal headings the second has a number."""
    page = tmp_path / "page.md"
    page.write_text("# One `page`\n\n```sh\n# a comment\n```\n\n## What it does, and why\n\n# One page\n")
    assert _anchors(page) == {"one-page", "what-it-does-and-why", "one-page-1"}


def test_every_page_is_linked() -> None:
    """No page of docs/ is left to be found by chance: the README names their index."""
    assert "docs/README.md" in README
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md" and f"]({page.name})" not in index] == []


def test_every_script_named_exists() -> None:
    """What people are told to run is there, and may be run."""
    named = set(re.findall(r"scripts/\w+", README))
    assert {"scripts/demo", "scripts/test"} <= named
    assert [name for name in named if not (ROOT / name).stat().st_mode & 0o100] == []


def test_every_verb_named_exists() -> None:
    """``forebay VERB`` in a code block is a verb of the command line."""
    verbs = {word for line in _shell_lines() for word in _verbs_in(line)}
    assert {"run", "serve", "warm", "status"} <= verbs
    assert verbs <= set(all_verbs())


def test_every_flag_named_exists() -> None:
    """Flags in prose and examples are settings or options of a verb."""
    known = {flag for command in all_verbs().values() for flag in _flags_of(command)}
    for page in OF_VERBS:
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text(encoding="utf-8")))
        assert named - known - FOREIGN == set(), page.name


def _anchors(page: Path) -> set[str]:
    """As GitHub makes them of the headings of ``page``."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
    return {f"{anchor}-{again}" if again else anchor for anchor, count in found.items() for again in range(count + 1)}


def _flags_of(command: click.Command) -> set[str]:
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    own = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*(_flags_of(child) for child in inner))


def _shell_lines() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    return [line.partition("   #")[0] for block in blocks for line in block.splitlines()]


def _verbs_in(line: str) -> list[str]:
    found = []
    for command in line.split(";"):
        words = shlex.split(command)
        if len(words) > 1 and words[0] == "forebay":
            found.append(words[1])
    return found
