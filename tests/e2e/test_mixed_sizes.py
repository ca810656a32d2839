"""Files of very unlike sizes on one host, whose connections are kept and used again: each reader gets the bytes of what it asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trustme
from support import nginx as servers
from support.lengths import ordinarily
from support.ports import free_ports
from support.readers import Got, make_shard, many, read, shard_sizes
from support.sidecar import Sidecar, forebay, running

pytestmark = [pytest.mark.needs("nginx")]

FILES, SMALLEST, LARGEST = 54, 900, 9_000_000
READERS, TIMES = 24, ordinarily(2, of=4, what="times that files of unlike sizes are read")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("files")
    return [make_shard(place / f"{number:02d}.tar", size, number) for number, size in enumerate(shard_sizes(FILES, SMALLEST, LARGEST))]


@pytest.fixture(params=["http", "https"])
def origin(request: pytest.FixtureRequest, tmp_path: Path, files: list[Path]) -> Iterator[tuple[str, dict[str, str]]]:
    """Where the files are, and what the sidecar must know to reach it."""
    authority, certificate, bundle = trustme.CA(), tmp_path / "server.pem", tmp_path / "authority.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    authority.cert_pem.write_to_path(bundle)
    (port,) = free_ports(1)
    over_tls = f"listen 127.0.0.1:{port} ssl; ssl_certificate {certificate}; ssl_certificate_key {certificate};"
    with servers.nginx(tmp_path / "nginx", files[0].parent, plain=over_tls) as served:
        yield f"https://127.0.0.1:{port}" if request.param == "https" else served.base(), {"SSL_CERT_FILE": str(bundle)}


def test_each_reader_gets_its_own_bytes(place: Path, files: list[Path], origin: tuple[str, dict[str, str]]) -> None:
    """Cold by readers of whom a third leave in the middle of what they read; then cached, and checked by the sidecar's own sums."""
    base, variables = origin
    chance = random.Random(54)

    def one(sidecar: Sidecar, file: Path, time: int, *, leaves: bool) -> Got:
        """``time``: under which of its names, so that it is cold again."""
        url = sidecar.proxied(f"{base}/{file.name}?time={time}")
        return read(url, file, stop_after=file.stat().st_size // 2 if leaves else None)

    with running(place, "--cache-size", "1GB", allow=[base], environ=variables) as sidecar:
        for time in range(TIMES):
            wanted = chance.sample(files, FILES) + chance.sample(files, FILES // 3)
            leaving = [chance.random() < 1 / 3 for _ in wanted]
            cold = many(READERS, [partial(one, sidecar, file, time, leaves=leaves) for file, leaves in zip(wanted, leaving, strict=True)])
            assert all(got.whole or leaves for got, leaves in zip(cold, leaving, strict=True))
            cached = many(READERS, [partial(one, sidecar, file, time, leaves=False) for file in files])
            assert all(got.whole for got in cached)
        verified = forebay(place, "verify", FOREBAY_URL=sidecar.url)
        assert verified.returncode == 0, verified.stderr
