"""The site that scripts/docs builds: its menu is that of docs/README.md; built, no link is broken and nothing comes from the network."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from support.browser import browsing, needs_chromium
from support.lengths import LEFT, LONG

import forebay_loader as fb

ROOT = Path(__file__).parents[1]
CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
HOOKS = (ROOT / "scripts" / "site" / "hooks.py").read_text("utf-8")
MADE = {"api.md", "commands.md", "pages.md"}  # by scripts/site/hooks.py
PHONE, DESK = 390, 1400
BUILD_S = 1200  # with the environment, where there is none yet

if not LONG:
    LEFT.append("the build of the site of docs/, and the look at it in a browser")


def test_the_menu_is_that_of_the_index() -> None:
    """The same shelves, the same pages, in the same order."""
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    shelves = {
        part.splitlines()[0]: [link.replace("../README.md", "index.md") for link in re.findall(r"^\| \[[^\]]+\]\(([^)#]+)\)", part, re.M)]
        for part in index.split("\n## ")[1:]
    }
    menu = {title: [page for each in pages for page in each.values()] for each in CONFIG["nav"] for title, pages in each.items()}
    assert {title: [page for page in pages if page not in MADE] for title, pages in menu.items()} == shelves
    assert {page for pages in menu.values() for page in pages} >= MADE


def test_the_menu_has_every_page() -> None:
    """One that is left out would be found by the search alone."""
    menu = {page for each in CONFIG["nav"] for pages in each.values() for entry in pages for page in entry.values()}
    there = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert menu - MADE - {"index.md"} == there


def test_the_reference_has_every_public_name() -> None:
    """Each once, in an order of its own."""
    table = ast.literal_eval(HOOKS.partition("\nNAMES = ")[2].partition("\n}")[0] + "}")
    assert sorted(name for names in table.values() for name in names) == sorted(fb.__all__)


def test_nothing_is_asked_of_the_network() -> None:
    """Neither fonts nor scripts."""
    assert CONFIG["theme"]["font"] is False
    assert "offline" in CONFIG["plugins"]
    assert not CONFIG["use_directory_urls"]
    assert all("//" not in name for name in CONFIG["extra"]["polyfills"] + CONFIG["extra_css"])


def test_a_warning_fails() -> None:
    """mkdocs counts for ``--strict`` only the warnings that it prints."""
    (command,) = [line for line in (ROOT / "scripts" / "docs").read_text("utf-8").splitlines() if "mkdocs build" in line]
    assert "--strict" in command
    assert "--quiet" not in command


class References(HTMLParser):
    """What a page links to, what it loads, and the places in it that others can link to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.places: set[str] = set()
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.places |= {str(given[name]) for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.add(str(given["href"]))
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.loads.add(str(given["href"]))
        elif given.get("src"):
            self.loads.add(str(given["src"]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not LONG:
        pytest.skip("scripts/test --long builds the site")
    into = tmp_path_factory.mktemp("site")
    done = subprocess.run([ROOT / "scripts" / "docs", into], capture_output=True, text=True, timeout=BUILD_S, check=False, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return into


@pytest.mark.timeout(BUILD_S)
def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    """To a page and a place on it; and what a page loads is a file beside it."""
    pages = {path: References(path) for path in site.rglob("*.html") if path.name != "404.html"}
    lost = []
    for page, found in pages.items():
        for link in sorted(found.links | found.loads):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                lost += [(page.name, link)] if link in found.loads else []
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not target.is_file() or (parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places):
                lost.append((page.name, link))
    assert lost == []


@needs_chromium
@pytest.mark.timeout(BUILD_S)
async def test_a_phone_shows_it_at_its_width_and_the_search_finds(site: Path, tmp_path: Path) -> None:
    """From files, without a server: no page is wider than the screen, and a word leads to its page."""
    async with browsing(tmp_path) as page:
        for width in (PHONE, DESK):
            await page.size(width, 900, phone=width == PHONE)
            for name in sorted(path.name for path in site.glob("*.html") if path.name != "404.html"):
                await page.go((site / name).as_uri())
                await page.until(f"location.pathname.endsWith('/{name}') && document.readyState === 'complete'")
                assert await page.value("document.documentElement.scrollWidth") <= width, (name, width)
        await page.go((site / "index.html").as_uri() + "?q=tarfile_to_samples")
        await page.until("!!document.querySelector('.md-search-result__link')")
        assert page.complaints == []
