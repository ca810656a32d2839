"""The demo's processes: what they are started with."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from demo.processes import SHORT_DIRECTORY, OriginProcess, temporary


@pytest.mark.parametrize("length", [70, 74, 75, 76, 77, 90])
def test_sockets_of_workers_fit_where_a_trainer_has_its_files(length: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A directory is given as it is exactly where multiprocessing's name of a socket below it can be bound."""
    monkeypatch.chdir(tmp_path)  # relative, since the length is what is tested, and no directory outside ours is made
    directory = Path("d" * length)
    (directory / "pymp-12345678").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(str(directory / "pymp-12345678" / "listener-12345678"))
        except OSError:
            fits = False
        else:
            fits = True
    assert temporary(directory) == (str(directory) if fits else SHORT_DIRECTORY)


def test_an_origin_starts_from_any_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of an example that is run by its path, and finds its modules beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with OriginProcess(tmp_path, latency_ms=0, rate_mb=0) as origin:
        assert origin.base.startswith("http://127.0.0.1:")
