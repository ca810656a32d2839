"""``forebay::https://…`` by fsspec: other people's programs read the same bytes, through the sidecar. Real programs, nginx and S3."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import nginx as servers
from support.clients import Read, needs_clients, reads_of, told
from support.fsspec_programs import PROGRAMS, TARS
from support.s3_servers import S3Server, moto  # noqa: F401
from support.sidecar import Sidecar, environment, running

SAMPLES = 12


@dataclass(frozen=True)
class Place:
    origin: servers.Nginx
    sidecar: Sidecar
    directory: Path

    @property
    def environ(self) -> dict[str, str]:
        quiet = {"HF_HOME": str(self.directory / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "0"}
        return {**environment(self.directory), "PYTHONPATH": "", "FOREBAY_URL": self.sidecar.url, **quiet}

    def read(self, *rounds: tuple[str, Sequence[str]]) -> list[dict[str, Read]]:
        """What the programs of each round read, with its prefix before their URLs."""
        return reads_of("fsspec_programs.py", self.origin.base(), json.dumps(rounds), environ=self.environ)


def write_tars(directory: Path) -> None:
    """Samples of a picture's bytes and a text, as webdataset has them."""
    dice = random.Random(1)
    for shard, name in enumerate(TARS):
        with tarfile.open(directory / name, "w") as tar:
            for number in range(SAMPLES):
                for ending, data in (("bin", dice.randbytes(20_000)), ("txt", f"{shard} {number}".encode())):
                    member = tarfile.TarInfo(f"{shard}{number:04}.{ending}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


@pytest.fixture(scope="module")
def placed() -> Iterator[Place]:
    """A server with a folder for each program, and a sidecar that has read nothing."""
    with tempfile.TemporaryDirectory(prefix="forebay-e2e-") as directory:
        place = Path(directory)
        for name in PROGRAMS:
            (place / "files" / name).mkdir(parents=True)
            write_tars(place / "files" / name)
        told("tables.py", str(place / "x.parquet"), environ=os.environ)
        for name in PROGRAMS:
            shutil.copy(place / "x.parquet", place / "files" / name)
        with (
            servers.nginx(place / "nginx", place / "files") as origin,
            running(place, "--cache-size", "100MB", allow=[origin.base()]) as sidecar,
        ):
            yield Place(origin, sidecar, place)


SAME = [name for name in PROGRAMS if name != "duckdb"]  # which cannot read over fsspec's own http: that tells no date


@pytest.fixture(scope="module")
def reads(placed: Place) -> list[dict[str, Read]]:
    """Of each program: without the sidecar; through it for the first time, and again when all of it is here."""
    return placed.read(("", SAME), ("forebay::", [*PROGRAMS]), ("forebay::", SAME))


@needs_clients
@pytest.mark.parametrize("name", SAME)
def test_it_reads_the_same_and_through_the_sidecar(placed: Place, reads: list[dict[str, Read]], name: str) -> None:
    """As without: the first time, and again when all of it is here and the origin serves nothing more."""
    direct, first, again = (read[name] for read in reads)
    assert first.found == direct.found
    assert direct.sent == 0
    assert first.fetched <= sum(path.stat().st_size for path in (placed.directory / "files" / name).iterdir()), "each byte once"
    assert again.found == direct.found
    assert again.fetched == 0
    if name != "missing":
        assert min(first.sent, again.sent) > 0


@needs_clients
def test_s3_by_its_path_needs_no_s3_library(place: Path, moto: S3Server) -> None:  # noqa: F811
    """``forebay://s3/bucket/key`` and ``forebay::s3://bucket/key``: with the sidecar's keys, and a bucket's listing by s3fs."""
    (place / "files").mkdir()
    write_tars(place / "files")
    with moto.client() as client:
        client.create_bucket(Bucket="tars")
        for name in TARS:
            client.put_object(Bucket="tars", Key=f"a b/{name}", Body=(place / "files" / name).read_bytes())
    code = (
        "import fsspec, json, hashlib, sys\n"
        "def sha(data): return hashlib.sha256(data).hexdigest()\n"
        "def read(url, **options):\n"
        "    with fsspec.open(url, 'rb', **options) as file: return sha(file.read())\n"
        "found = [read('forebay://s3/tars/a%20b/0001.tar')]\n"
        "found.append('s3fs' in sys.modules)\n"
        "found.append(read('forebay::s3://tars/a b/0001.tar'))\n"
        "fs, path = fsspec.url_to_fs('forebay::s3://tars/a b/*.tar', s3={'client_kwargs': {'region_name': 'us-east-1'}})\n"
        "found.append([sha(fs.cat_file(name)) for name in fs.glob(path)])\n"
        "print(json.dumps(found))\n"
    )
    (place / "program.py").write_text(code)
    with running(place, "--cache-size", "100MB", allow=[moto.url], environ=moto.environ) as sidecar:
        environ = {**environment(place), "PYTHONPATH": "", "FOREBAY_URL": sidecar.url, **moto.environ}
        plain, library, chained, globbed = told(str(place / "program.py"), environ=environ)
    sums = [hashlib.sha256((place / "files" / name).read_bytes()).hexdigest() for name in TARS]
    assert (plain, library, chained) == (sums[1], False, sums[1])
    assert globbed == sums


@needs_clients
def test_without_a_sidecar_the_target_reads(place: Path, placed: Place, reads: list[dict[str, Read]]) -> None:
    """None named, or one that is gone: a warning, and the same bytes from the origin."""
    direct = reads[0]["reading"].found
    unnamed = {name: value for name, value in placed.environ.items() if name != "FOREBAY_URL"}
    (place / "none").mkdir(mode=0o700)
    for environ in ({**unnamed, "XDG_RUNTIME_DIR": str(place / "none")}, {**unnamed, "FOREBAY_URL": "http://127.0.0.1:9"}):
        (found,) = reads_of("fsspec_programs.py", placed.origin.base(), json.dumps([("forebay::", ["reading"])]), environ=environ)
        assert found["reading"].found == direct
