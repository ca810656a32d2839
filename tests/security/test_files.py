"""What lies on the disk: only ours, whatever the umask, and never where somebody else has laid a link."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from support.refusals import refused
from support.seams import swapped
from support.sidecar import running

from forebay_proxy.config.settings import Settings
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.node.cache_location import CacheLocation, Machine, prepare
from forebay_proxy.node.runfile import RunDirectory, RunFile, process_start_time
from forebay_proxy.server.net.listen import UnixListener
from forebay_proxy.store.directory import hmac_key
from forebay_proxy.wire.protocol.runfile import read_run_file, runtime_directory

NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of another user")


def machine(uid: int | None = None) -> Machine:
    return Machine("1 0 0:1 / / rw - ext4 /dev/x rw\n", False, "node", os.getuid() if uid is None else uid)


def is_refused(make: Callable[[], object]) -> bool:
    try:
        made = make()
    except (ConfigError, OSError):
        return True
    if isinstance(made, int):
        os.close(made)
    return False


@pytest.mark.needs("sh")
@pytest.mark.parametrize("umask", ["000", "002", "077"])
def test_everything_written_is_ours_alone_whatever_the_umask(tmp_path: Path, umask: str) -> None:
    """Files 0600, directories 0700, sockets 0600: cache, index with its log, secrets, run file, log of a sidecar."""
    nas = tmp_path / "nas"
    nas.mkdir()
    (nas / "0.tar").write_bytes(b"s" * 10_000)
    wrapper = ("sh", "-c", f'umask {umask}; exec "$@"', "sh")
    flags = ("--cache-size", "50MB", "--file-root", str(nas), "--socket", str(tmp_path / "run" / "f.sock"))
    with running(tmp_path, *flags, wrapper=wrapper) as sidecar:
        assert len(sidecar.ask(f"/file{nas}/0.tar")) == 10_000
        seen = {path: path.lstat().st_mode for top in ("cache", "run") for path in (tmp_path / top).rglob("*")} | {
            tmp_path / "cache": (tmp_path / "cache").lstat().st_mode
        }
        kinds = {stat.S_IFMT(mode) for mode in seen.values()}
        assert kinds == {stat.S_IFREG, stat.S_IFDIR, stat.S_IFSOCK}
        loose = [str(path.relative_to(tmp_path)) for path, mode in seen.items() if mode & 0o077]
        refused(f"files: open to others under umask {umask}", held=loose == [])


@needs_root
def test_a_link_of_somebody_else_leads_the_cache_nowhere(tmp_path: Path) -> None:
    """In /tmp anybody may lay ``forebay-<our uid>`` as a link into a directory of ours; nothing is made or removed there."""
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o700)
    link = tmp_path / "forebay-0"
    link.symlink_to(precious)
    os.lchown(link, NOBODY, NOBODY)
    held = is_refused(lambda: prepare(CacheLocation(link), Settings(), machine())) and list(precious.iterdir()) == []
    refused("files: another user's link as cache directory", held=held)


def test_our_own_link_is_followed(tmp_path: Path) -> None:
    """People do lay their caches elsewhere."""
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(real)
    assert prepare(CacheLocation(tmp_path / "link", True), Settings(), machine()).path == real.resolve()


@pytest.mark.parametrize("name", ["index", "shards"])
def test_a_link_inside_the_cache_directory_is_not_followed(tmp_path: Path, name: str) -> None:
    """What it points to stays as it was; the sidecar refuses to start, or puts its own thing there."""
    outside = tmp_path / "outside"
    outside.mkdir()
    victim = outside / "victim"
    victim.write_bytes(b"precious")
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    (cache / name).symlink_to(outside)
    done = start_and_stop(tmp_path)
    untouched = victim.read_bytes() == b"precious" and [path.name for path in outside.iterdir()] == ["victim"]
    refused(f"files: a link in the cache directory, {name}", held=untouched and done in (0, 2))


def start_and_stop(directory: Path) -> int:
    """Exit code of a sidecar that is stopped as soon as it is ready; 2 where it does not start."""
    try:
        with running(directory, "--cache-size", "50MB") as sidecar:
            return sidecar.terminate()
    except AssertionError:
        return 2


def test_a_key_others_could_read_is_made_anew(tmp_path: Path) -> None:
    """The proofs it made are worth nothing any more."""
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        first = hmac_key(root)
        assert hmac_key(root) == first
        (tmp_path / "hmac.key").chmod(0o644)
        second = hmac_key(root)
    finally:
        os.close(root)
    held = second != first and stat.S_IMODE((tmp_path / "hmac.key").stat().st_mode) == 0o600
    refused("files: a key that others could read", held=held)


# The run directory, which lies in /tmp where no XDG_RUNTIME_DIR is


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the run directory would be, in a directory as open as /tmp."""
    open_to_all = tmp_path / "tmp"
    open_to_all.mkdir()
    open_to_all.chmod(0o1777)
    place = open_to_all / f"forebay-{os.getuid()}"
    monkeypatch.setattr("forebay_proxy.node.runfile.runtime_directory", lambda environ: environ.get("XDG_RUNTIME_DIR", str(place)))
    return place


@needs_root
def test_a_run_directory_of_somebody_else_is_refused(shared: Path) -> None:
    """Whoever made it first would tell our training processes where the sidecar is."""
    shared.mkdir(mode=0o700)
    os.chown(shared, NOBODY, NOBODY)
    refused("files: a run directory of another user", held=is_refused(lambda: RunDirectory.of({})))


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o707])
def test_a_run_directory_others_may_write_to_is_refused(shared: Path, mode: int) -> None:
    """Even our own."""
    shared.mkdir()
    shared.chmod(mode)
    refused(f"files: a run directory with mode {mode:o}", held=is_refused(lambda: RunDirectory.of({})))


def test_a_run_directory_that_is_a_link_or_a_file_is_refused(shared: Path, tmp_path: Path) -> None:
    """Also one that leads to a private directory of ours."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    shared.symlink_to(private)
    refused("files: a run directory that is a link", held=is_refused(lambda: RunDirectory.of({})) and list(private.iterdir()) == [])
    shared.unlink()
    shared.write_text("")
    refused("files: a run directory that is a file", held=is_refused(lambda: RunDirectory.of({})))


@needs_root
@pytest.mark.parametrize("how", ["of another user", "readable by others", "a link"])
def test_a_run_file_that_is_not_ours_leads_nowhere(shared: Path, how: str) -> None:
    """Neither the sidecar's side nor the training side believes it."""
    directory = RunDirectory.of({})
    told = shared / "forebay.json"
    here = RunFile("http://10.0.0.66:7070", None, os.getpid(), process_start_time(os.getpid()) or 0, "x", "/", "x", "serve")
    told.write_text(json.dumps(asdict(here)))
    told.chmod(0o600)
    environ = {"XDG_RUNTIME_DIR": str(shared)}
    assert len(directory.live()) == 1
    assert read_run_file(environ) is not None
    if how == "of another user":
        os.chown(told, NOBODY, NOBODY)
    elif how == "readable by others":
        told.chmod(0o644)
    else:
        told.rename(shared / "elsewhere")
        told.symlink_to(shared / "elsewhere")
    refused(f"files: a run file {how}", held=directory.live() == [] and read_run_file(environ) is None)


def test_the_default_run_directory_names_our_uid() -> None:
    """So that two users never mean the same one."""
    assert runtime_directory({}) == f"/tmp/forebay-{os.getuid()}"


# Sockets


def test_a_socket_is_private_from_its_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never has a name and another mode, even under an open umask."""
    modes = []
    rename = Path.rename
    swapped(
        monkeypatch,
        Path,
        rename=lambda self, target: modes.append(stat.S_IMODE(self.lstat().st_mode)) or rename(self, target),
        chmod=lambda *_: pytest.fail("the mode must be there when the name is"),
    )
    before = os.umask(0)
    try:
        listener = UnixListener(tmp_path / "f.sock")
    finally:
        os.umask(before)
    listener.socket.close()
    refused("files: a socket with another mode", held=modes == [0o600] and stat.S_IMODE((tmp_path / "f.sock").lstat().st_mode) == 0o600)


def test_a_dead_owners_socket_is_replaced_and_a_link_is_not_followed(tmp_path: Path) -> None:
    """What a link points to is neither removed nor listened on."""
    path, victim = tmp_path / "f.sock", tmp_path / "victim"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    listener = UnixListener(path)
    listener.remove()
    listener.socket.close()
    victim.write_text("precious")
    path.symlink_to(victim)
    refused("files: a link where the socket belongs", held=is_refused(lambda: UnixListener(path)) and victim.read_text() == "precious")


def test_no_secret_is_readable_by_others_in_proc(tmp_path: Path) -> None:
    """The arguments of a sidecar are public, so no setting that is secret has a flag."""
    with running(tmp_path, "--cache-size", "50MB", environ={"FOREBAY_TOKEN": "t0p-secret-token"}, real=True) as sidecar:
        arguments = Path(f"/proc/{sidecar.process.pid}/cmdline").read_bytes()
    refused("files: the token among the arguments", held=b"t0p-secret" not in arguments)
