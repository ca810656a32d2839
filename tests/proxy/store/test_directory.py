"""The cache directory has one owner, and what in it is not ours stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.store.directory import Directory, DirectoryOwned

KEY = "a" * 64


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[Directory]:
    directory = Directory.open(tmp_path / "cache", "serve")
    yield directory
    directory.close()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_missing_parents_are_made_for_us_alone(tmp_path: Path) -> None:
    """Every folder that was missing is 0700, whatever the umask."""
    before = os.umask(0)
    try:
        Directory.open(tmp_path / "a" / "b", "serve").close()
    finally:
        os.umask(before)
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o700


def test_a_second_owner_is_told_who_the_first_is(owned: Directory) -> None:
    """One line with pid and address."""
    owned.announce("http://127.0.0.1:7070", "0123")
    with pytest.raises(ConfigError, match=rf"owned by pid {os.getpid()}, serving http://127\.0\.0\.1:7070$") as caught:
        Directory.open(owned.path, "serve")
    assert "--cache-dir" in caught.value.next_step


def test_a_second_owner_while_the_first_is_starting(owned: Directory) -> None:
    """No address yet, the pid all the same; and a lock file that says nothing is no obstacle."""
    with pytest.raises(ConfigError, match=f"owned by pid {os.getpid()}, which is just starting"):
        Directory.open(owned.path, "run")
    (owned.path / "lock").write_text("{")
    with pytest.raises(ConfigError, match="owned by another process"):
        Directory.open(owned.path, "run")


def test_a_second_owner_is_told_that_the_first_is_ending(owned: Directory) -> None:
    """It may wait for it, then; otherwise it gives up at once."""
    owned.announce("http://127.0.0.1:1", "feed")
    with pytest.raises(DirectoryOwned, match="serving http") as refused:
        Directory.open(owned.path, "serve")
    assert not refused.value.ending
    owned.leaving()
    with pytest.raises(DirectoryOwned, match="which is ending") as refused:
        Directory.open(owned.path, "serve")
    assert refused.value.ending


@pytest.mark.parametrize("damage", ["", "short", "readable"])
def test_the_hmac_key_stays_unless_it_is_doubtful(tmp_path: Path, damage: str) -> None:
    """Credentials proven in one life are known in the next; a key that is cut, or that others could read, proves nothing any more."""
    first = Directory.open(tmp_path, "serve")
    first.close()
    if damage == "short":
        os.truncate(tmp_path / "hmac.key", 31)
    elif damage:
        (tmp_path / "hmac.key").chmod(0o644)
    second = Directory.open(tmp_path, "serve")
    second.close()
    assert (second.hmac_key == first.hmac_key) is (not damage)
    assert (tmp_path / "hmac.key").read_bytes() == second.hmac_key
    assert (len(second.hmac_key), mode(tmp_path / "hmac.key")) == (32, 0o600)


def test_a_link_as_the_directory_is_refused(tmp_path: Path) -> None:
    """In a shared /tmp somebody else may have made it; the message names the place it leads to."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(ConfigError, match="symbolic link") as caught:
        Directory.open(tmp_path / "link", "serve")
    assert str(tmp_path / "real") in caught.value.next_step


def test_a_directory_others_may_write_is_refused(tmp_path: Path) -> None:
    """Who can write there can plant files. No descriptor, and so no lock, is left behind."""
    tmp_path.chmod(0o770)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ConfigError, match="written by others"):
        Directory.open(tmp_path, "serve")
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_place_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    """A file in the way: ConfigError, one line, and what to do."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        Directory.open(tmp_path / "file" / "cache", "serve")
    assert "\n" not in str(caught.value)


def test_a_scan_tells_ours_from_others(owned: Directory) -> None:
    """Only a plain file of our uid named by 64 hex digits is a shard file; the rest is named and left."""
    shards = owned.path / "shards"
    (shards / KEY).write_bytes(b"x" * 5000)
    (shards / "note.txt").touch()
    (shards / KEY.upper()).touch()
    (shards / ("b" * 64)).symlink_to(shards / KEY)
    (shards / ("c" * 64)).mkdir()
    (owned.path / "README").touch()
    (owned.path / "forebay.log").touch()
    found = owned.scan()
    assert {key: file.size for key, file in found.files.items()} == {KEY: 5000}
    assert found.files[KEY].allocated >= 5000
    expected = ["README", "shards/note.txt", f"shards/{KEY.upper()}", f"shards/{'b' * 64}", f"shards/{'c' * 64}"]
    assert sorted(found.unknown) == sorted(expected)


def test_overhead_counts_all_but_shard_files(owned: Directory) -> None:
    """Logs, the index, files and whole folders that are not ours: allocated bytes."""
    before = owned.overhead()
    (owned.path / "shards" / KEY).write_bytes(b"x" * 2**20)
    assert owned.overhead() == before
    (owned.path / "forebay.log").write_bytes(b"x" * 2**20)
    (owned.path / "index" / "cache.db").write_bytes(b"x" * 2**20)
    assert owned.overhead() - before >= 2 * 2**20
    (owned.path / "data" / "deep").mkdir(parents=True)
    (owned.path / "data" / "deep" / "file").write_bytes(b"x" * 2**20)
    (owned.path / "shards" / "note").write_bytes(b"x" * 2**20)
    owned.scan()
    assert owned.overhead() - before >= 4 * 2**20


def test_an_index_set_aside_is_kept(owned: Directory) -> None:
    """The newest damaged index stays for whoever wants to know; the folder is new and the descriptor the same."""
    for content in ("first", "second"):
        (owned.path / "index" / "cache.db").write_text(content)
        owned.set_index_aside()
        assert os.listdir(owned.index) == []
        assert (owned.path / "index-broken" / "cache.db").read_text() == content
    assert owned.scan().unknown == []


def test_an_index_is_set_aside_whatever_is_in_the_way(owned: Directory) -> None:
    """A folder that cannot be emptied takes another name's place, not ours."""
    (owned.path / "index-broken" / "folder").mkdir(parents=True)
    (owned.path / "index" / "cache.db").touch()
    owned.set_index_aside()
    assert os.listdir(owned.index) == []
    assert len(owned.scan().unknown) == 1


def test_a_vanished_index_is_begun_anew(owned: Directory) -> None:
    """Without the folder there is nothing to keep."""
    (owned.path / "index").rmdir()
    owned.set_index_aside()
    assert (owned.path / "index").is_dir()


def test_it_knows_whether_it_is_where_it_was(tmp_path: Path) -> None:
    """Removed, replaced, its lock or its shards gone: no. The index, which it sets aside itself, does not count."""
    path = tmp_path / "c"
    owned = Directory.open(path, "serve")
    assert owned.in_place()
    owned.set_index_aside()
    assert owned.in_place()
    for name in ("lock", "shards", ""):
        aside = tmp_path / "aside"
        (path / name).rename(aside)
        assert not owned.in_place()
        if name == "shards":
            (path / name).mkdir()
            assert not owned.in_place()
            (path / name).rmdir()
        aside.rename(path / name)
        assert owned.in_place()
    owned.close()
