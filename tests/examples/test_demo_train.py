"""The demo's trainer and processes: what they measure is what happened."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.processes import SHORT_DIRECTORY, OriginProcess, PartFailed, Sidecar, fetch_json, run_trainer, temporary
from demo.report import Row

SAMPLES = 40
BYTES_EACH = 1000


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards of small text samples."""
    root = tmp_path_factory.mktemp("train")
    for shard in range(2):
        with tarfile.open(root / f"s-{shard}.tar", "w") as tar:
            for index in range(SAMPLES // 2):
                member = tarfile.TarInfo(f"{shard}-{index:03d}.txt")
                member.size = BYTES_EACH
                tar.addfile(member, io.BytesIO(os.urandom(BYTES_EACH)))
    return root


@pytest.fixture(scope="module")
def origin(directory: Path) -> Iterator[OriginProcess]:
    with OriginProcess(directory, latency_ms=1, rate_mb=0) as running:
        yield running


def train(urls: list[str], *options: str) -> dict[str, Any]:
    return run_trainer(urls, "--step-ms", "1", "--batch", "8", *options, environment=os.environ)


@pytest.mark.needs("curl")
@pytest.mark.usefixtures("warm")
def test_direct_epoch_counts_every_sample(origin: OriginProcess) -> None:
    """Plain WebDataset over pipe:curl trains on each sample once, and the origin sends each byte once."""
    origin.reset()
    epoch = train([f"pipe:curl -s -f -L {origin.url('s-{0..1}.tar')}"])
    assert (epoch["samples"], epoch["repeated"], epoch["error"]) == (SAMPLES, 0, "")
    assert epoch["bytes"] == SAMPLES * BYTES_EACH
    assert origin.counts()["requests"] == 2


@pytest.mark.needs("curl")
@pytest.mark.usefixtures("warm")
def test_cut_shard_is_silently_short_with_true(origin: OriginProcess, directory: Path) -> None:
    """``|| true`` hides a cut at a sample boundary: fewer samples, no error. This is what the demo warns of."""
    with tarfile.open(directory / "s-0.tar") as tar:
        offset = tar.getmembers()[5].offset
    origin.cut_once("s-0.tar", offset)
    epoch = train([f"pipe:curl -s -f -L {origin.url('s-0.tar')} || true"], "--workers", "1")
    assert (epoch["samples"], epoch["error"]) == (5, "")


@pytest.mark.usefixtures("warm")
def test_failing_shards_are_a_result(origin: OriginProcess) -> None:
    """A pipeline that raises ends the epoch early and says why, instead of ending the demo."""
    epoch = train([f"pipe:curl -s -f {origin.url('absent.tar')}"], "--workers", "1")
    assert epoch["samples"] == 0
    assert epoch["error"]


@pytest.mark.usefixtures("warm")
def test_limit_ends_the_epoch(directory: Path) -> None:
    """``--limit-bytes`` ends an epoch at the first batch beyond it."""
    epoch = train([f"{directory}/s-0.tar"], "--workers", "1", "--limit-bytes", str(9 * BYTES_EACH))
    assert epoch["samples"] == 16


@pytest.mark.usefixtures("warm")
def test_trainer_without_a_result_is_an_error() -> None:
    """A trainer that dies before its epoch is reported with its last words."""
    with pytest.raises(PartFailed, match="invalid choice"):
        train(["x"], "--through", "nowhere")


def test_origin_ends_with_its_parent(directory: Path) -> None:
    """Leaving the context ends the origin's process."""
    with OriginProcess(directory, latency_ms=0, rate_mb=0) as short:
        base = short.base
    with pytest.raises(OSError, match="refused"):
        fetch_json(f"{base}/-/counts")


def test_sidecar_that_cannot_start_says_why(tmp_path: Path) -> None:
    """A sidecar that ends at once is reported with the line it printed."""
    (tmp_path / "cache").write_text("a file, not a directory")
    with pytest.raises(PartFailed, match=r"did not start: \w"), Sidecar(tmp_path, 10**8):
        pytest.fail("it started")


@pytest.mark.parametrize(("samples", "gain"), [(200, "2.00x"), (105, "1.05x: no gain"), (50, "0.50x: no gain")])
def test_gain_is_named_only_when_there_is_one(samples: int, gain: str) -> None:
    """A few percent are noise, not a gain."""
    direct = Row("direct", {"samples": 100, "epoch_s": 1.0}, 0, 0)
    assert Row("other", {"samples": samples, "epoch_s": 1.0}, 0, 0, direct).gain() == gain


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
