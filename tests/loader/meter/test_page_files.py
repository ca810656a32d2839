"""Where pages lie, who may read them, and that the dead's go."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from forebay_loader.meter import page_files
from forebay_loader.meter.page import PageWriter
from forebay_loader.meter.page_files import PageName, create_page, open_page, pages, remove_page, sweep_pages


@pytest.fixture
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    found = [tmp_path / "memory", tmp_path / "beside"]
    monkeypatch.setattr(page_files, "_directories", lambda: [str(one) for one in found])
    return found


def begun(name: PageName) -> PageWriter:
    return PageWriter(create_page(name), pid=name.pid, start_time=name.start_time, worker=0, now_ns=1)


def own() -> PageName:
    found = PageName.of(os.getpid())
    assert found is not None
    return found


def test_a_page_is_found_by_its_process(directories: list[Path]) -> None:
    """In a directory of its user's alone; gone when it is removed."""
    writer = begun(own())
    assert stat.S_IMODE(directories[0].stat().st_mode) == 0o700
    page = open_page(own())
    assert page is not None
    assert page.view().pid == os.getpid()
    assert list(pages()) == [own()]
    remove_page(own())
    assert open_page(own()) is None
    page.close()
    writer.close()


def test_the_second_directory_is_taken_where_the_first_is_not_ours_alone(directories: list[Path]) -> None:
    directories[0].mkdir(mode=0o777)
    directories[0].chmod(0o777)
    begun(own()).close()
    assert not list(directories[0].iterdir())
    assert len(list(directories[1].iterdir())) == 1


def test_no_directory_is_an_error(directories: list[Path]) -> None:
    """Which the process that wanted a page says once."""
    directories[:] = [Path("/proc/nowhere")]
    with pytest.raises(OSError, match="/proc/nowhere"):
        create_page(own())


def test_the_deads_pages_are_swept(directories: list[Path]) -> None:
    """Of this pid namespace by their process, of others by their silence; the living's stay."""
    mine = own()
    for name in (mine, mine._replace(start_time=1), mine._replace(namespace=1)):
        begun(name).close()
    sweep_pages()
    assert list(pages()) == [mine]
