"""What mkdocs cannot know of this repository: which page is which file, where links to its other files lead, and the pages that are made.

README.md is the first page of the site and docs/README.md its page ``pages``. A file that a page links to is added below ``repository/``,
a Markdown file as a page and any other as its text. ``api`` has the public names of ``forebay_loader`` from their docstrings,
``commands`` what ``forebay VERB --help`` prints. No page is copied into the repository.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pymdownx.slugs import slugify

from forebay_proxy.cli.main import cli

ROOT = Path(__file__).parents[2]
ASSETS = ("iframe-worker.js", "site.css")
FIRST = {"README.md": "index.md", "docs/README.md": "pages.md"}
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
CODE = re.compile(r"^(```|~~~).*?^\1[`~]*\s*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".sh": "sh", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml"}
WIDTH = 100  # of what a command prints

# In the order in which they are used: heading, names. A test compares them with `fb.__all__`.
NAMES = {
    "Read": ("WebDataset", "WebLoader", "tarfile_to_samples", "ahead", "Limits"),
    "Use with code of webdataset's": ("enable", "disable", "worker_init", "sidecar"),
    "See what happens": ("stalls", "postfix", "status", "counters"),
    "Resume": ("save_state", "load_state", "merge_states", "describe_state", "rng"),
    "Batches": ("batched", "padded"),
    "Video": ("video", "Clips", "by_epoch"),
    "Keep what was computed": ("memo", "frames"),
    "Samples by number": ("IndexedShard", "IndexedShards"),
    "Errors": (
        "LoaderError", "ProxyUnreachable", "ShardReadError", "ShardChanged", "TarFault", "VideoError", "TooManySkips", "StepsError",
        "NotResumable",
    ),
}  # fmt: skip
# What functions return, where a reader needs its fields: after the name that returns it.
RESULTS = {"stalls": "forebay_loader.meter.totals.StallTotals", "status": "forebay_loader.session.status.Status"}

_files_of: dict[str, str] = {}  # page of the site -> file of the repository


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Anchors are GitHub's, since the pages are read there too."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages that are made, and the files of the repository that pages link to."""
    _files_of.clear()
    for file in list(files):
        path = f"docs/{file.src_uri}"
        if path in FIRST:
            files.remove(file)
        elif file.is_documentation_page():
            _files_of[file.src_uri] = path
    for path, page in FIRST.items():
        _files_of[page] = path
        files.append(File.generated(config, page, content=(ROOT / path).read_text("utf-8")))
    files.append(File.generated(config, "api.md", content=api_page()))
    files.append(File.generated(config, "commands.md", content=commands_page()))
    for name in ASSETS:
        files.append(File.generated(config, name, content=(ROOT / "scripts" / "site" / name).read_text("utf-8")))
    found = set(_files_of.values())
    waiting = sorted(found)
    while waiting:
        for path in sorted({target for target in links_of(waiting.pop()) if (ROOT / target).is_file()} - found):
            found.add(path)
            if files.get_file_from_path(page_of(path)) is None:
                _files_of[page_of(path)] = path
                files.append(File.generated(config, page_of(path), content=text_of(path)))
                waiting += [path] if path.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links between files of the repository lead to their pages."""
    path = _files_of.get(page.file.src_uri)
    if path is None or not path.endswith(".md"):
        return markdown

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2]))
        return f"{link[1]}{posixpath.relpath(page_of(target), posixpath.dirname(page.file.src_uri))}{link[3]}"

    return outside_code(markdown, lambda text: spaced_lists(LINK.sub(moved, text)))


def page_of(path: str) -> str:
    """Where the site has a file of the repository."""
    if path in FIRST:
        return FIRST[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


def links_of(path: str) -> set[str]:
    """The files of the repository that a page links to."""
    prose = CODE.sub("", (ROOT / path).read_text("utf-8"))
    return {posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2])) for link in LINK.finditer(prose)}


def text_of(path: str) -> str:
    """A Markdown file itself, another one as a program; neither is found by the search."""
    text = (ROOT / path).read_text("utf-8")
    if not path.endswith(".md"):
        text = f"# `{path}`\n\n~~~~{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}\n~~~~\n"
    return f"---\nsearch:\n  exclude: true\n---\n{text}"


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """``text`` with ``change`` applied to what is neither a program nor between backticks."""
    kept: list[str] = []

    def keep(code: re.Match[str]) -> str:
        kept.append(code[0])
        return f"\0{len(kept) - 1}\0"

    return re.sub("\0(\\d+)\0", lambda at: kept[int(at[1])], change(CODE.sub(keep, text)))


def spaced_lists(text: str) -> str:
    """A list begins after an empty line: GitHub needs none, Python's Markdown does."""
    return re.sub(r"^((?![-*|#\s]|\d+\. ).+\n)(?=(?:[-*]|\d+\.) )", r"\1\n", text, flags=re.MULTILINE)


def api_page() -> str:
    """Each public name of the loader, from its docstring."""
    lines = ["# The loader, name by name", "", "After `import forebay_loader as fb`, each name below is `fb.NAME`.", ""]
    for heading, names in NAMES.items():
        lines += [f"## {heading}", ""]
        for name in names:
            lines += [f"::: forebay_loader.{name}", ""]
            lines += [f"::: {RESULTS[name]}", ""] if name in RESULTS else []
    return "\n".join(lines)


def commands_page() -> str:
    """What each verb prints as its help."""
    lines = ["# Commands", "", "What `forebay VERB --help` prints.", ""]
    context = click.Context(cli, info_name="forebay", max_content_width=WIDTH, terminal_width=WIDTH)
    for name, command in commands_below(cli, context):
        lines += [f"## forebay {name}", "", "~~~~text", command.get_help(context_of(command, name)), "~~~~", ""]
    return "\n".join(lines)


def commands_below(group: click.Group, context: click.Context, before: str = "") -> list[tuple[str, click.Command]]:
    """All verbs that are shown, those of a group after it."""
    found: list[tuple[str, click.Command]] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            found.append((before + name, command))
            found += commands_below(command, context, f"{before}{name} ") if isinstance(command, click.Group) else []
    return found


def context_of(command: click.Command, name: str) -> click.Context:
    """As on a terminal of ``WIDTH`` columns."""
    return click.Context(command, info_name=f"forebay {name}", max_content_width=WIDTH, terminal_width=WIDTH)
