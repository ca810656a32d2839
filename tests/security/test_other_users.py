"""Somebody else on this machine, and somebody on another one: real processes under another uid, real addresses, the real sidecar."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.netns import lonely_network
from support.refusals import refused
from support.sidecar import Sidecar, forebay, running

from forebay_proxy.server.net.access import Access, AccessQuestion, AccessRefused
from forebay_proxy.server.net.peers import Peer, Where

NOBODY = 65534
TOKEN = "a-token-nobody-guesses"
ADDRESS = "10.20.30.40"
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
pytestmark = pytest.mark.needs("curl", "setpriv")


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    root = tmp_path / "nas"
    root.mkdir()
    (root / "0.tar").write_bytes(b"shard")
    return root / "0.tar"


@pytest.fixture
def tmp_path(open_folder: Path) -> Path:
    """What keeps others out must be the socket, not the directories above it."""
    return open_folder


def curl(*words: str, uid: int | None = None) -> tuple[int, str]:
    """Status (0: no connection) and body, asked for by a process of that uid."""
    setpriv = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups") if uid is not None else ()
    command = [*setpriv, shutil.which("curl") or "curl", "-sS", "--max-time", "20", "-w", "\n%{http_code}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd="/")
    body, _, status = done.stdout.rpartition("\n")
    return int(status or 0), body


@pytest.fixture
def sidecar(tmp_path: Path, shard: Path) -> Iterator[Sidecar]:
    with running(tmp_path, "--cache-size", "50MB", "--file-root", str(shard.parent), "--socket", str(tmp_path / "f.sock")) as found:
        yield found


@needs_root
def test_another_user_gets_health_and_nothing_else(sidecar: Sidecar, shard: Path, tmp_path: Path) -> None:
    """Over loopback and over the socket: no shard, no status, no metrics, no command; each refusal names the flag."""
    socket = tmp_path / "f.sock"
    assert curl(f"{sidecar.url}/file{shard}") == (200, "shard")
    assert curl("--unix-socket", str(socket), f"http://forebay/file{shard}") == (200, "shard")
    for path in ("/healthz", "/readyz"):
        assert curl(sidecar.url + path, uid=NOBODY)[0] == 200
    for path in (f"/file{shard}", "/", "/v1/status", "/v1/shards", "/v1/plans", "/metrics", "/v1/nothing"):
        status, body = curl(sidecar.url + path, uid=NOBODY)
        held = status == 403 and f"--allow-uid {NOBODY}" in json.loads(body)["next_step"]
        refused(f"another user: GET {path.partition('/pytest')[0]} over loopback", held=held)
    for method, path in (
        ("POST", "/v1/evict"),
        ("POST", "/v1/warm"),
        ("PUT", "/v1/plans/a/b/c/d"),
        ("DELETE", "/v1/plans/a/b/c/d"),
        ("POST", "/v1/meter/a/b/c/d"),
    ):
        status, _ = curl("-X", method, "-d", '{"all": true}', sidecar.url + path, uid=NOBODY)
        refused(f"another user: {method} {path} over loopback", held=status == 403)
    status, _ = curl("-H", f"Forebay-Token: {TOKEN}", sidecar.url + "/v1/status", uid=NOBODY)
    refused("another user: with a token", held=status == 403)
    status, _ = curl("--unix-socket", str(socket), f"http://forebay/file{shard}", uid=NOBODY)
    refused("another user: the socket, kept out by its mode", held=status == 0)
    socket.chmod(0o666)
    status, _ = curl("--unix-socket", str(socket), f"http://forebay/file{shard}", uid=NOBODY)
    refused("another user: the socket, kept out by its credentials", held=status == 403)


@needs_root
def test_an_allowed_user_comes_in(tmp_path: Path, shard: Path) -> None:
    """--allow-uid lets in whom it names, and root is not among them by itself."""
    with running(tmp_path, "--cache-size", "50MB", "--file-root", str(shard.parent), "--allow-uid", str(NOBODY)) as sidecar:
        assert curl(f"{sidecar.url}/file{shard}", uid=NOBODY) == (200, "shard")
        refused("another user: one that was not named", held=curl(f"{sidecar.url}/file{shard}", uid=NOBODY - 1)[0] == 403)


@needs_root
@pytest.mark.needs("unshare")
@pytest.mark.parametrize("inside", [NOBODY, 1000])
def test_a_namespace_that_maps_one_user_lets_nobody_else_in(tmp_path: Path, shard: Path, inside: int) -> None:
    """As a rootless container on the host's network: every other user looks like uid 65534 from within, also where that is its own."""
    wrapper = ("unshare", "-U", f"--map-user={inside}", f"--map-group={inside}")
    socket = tmp_path / "f.sock"
    flags = ("--cache-size", "50MB", "--file-root", str(shard.parent), "--socket", str(socket), "--allow-uid", str(NOBODY))
    with running(tmp_path, *flags, wrapper=wrapper) as sidecar:
        socket.chmod(0o666)
        for uid in (1234, NOBODY, 2000):
            for words in ((f"{sidecar.url}/file{shard}",), ("--unix-socket", str(socket), f"http://forebay/file{shard}")):
                status, body = curl(*words, uid=uid)
                refused(f"another user: uid {uid} and a namespace of uid {inside}", held=status == 403 and "user namespace" in body)
        assert curl(f"{sidecar.url}/file{shard}")[0] == (403 if inside == NOBODY else 200)
        assert ("does not map every user" in sidecar.log_text()) is (inside == NOBODY)


@needs_root
def test_nobody_may_run_a_sidecar_where_everybody_has_a_number(tmp_path: Path, shard: Path) -> None:
    """Outside such a namespace uid 65534 is a user like any other."""
    wrapper = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    for name in ("cache", "run"):
        (tmp_path / name).mkdir(mode=0o700)
        os.chown(tmp_path / name, NOBODY, NOBODY)
    with running(tmp_path, "--cache-size", "50MB", "--file-root", str(shard.parent), wrapper=wrapper) as sidecar:
        assert curl(f"{sidecar.url}/file{shard}", uid=NOBODY) == (200, "shard")
        refused("another user: root and a sidecar of nobody's", held=curl(f"{sidecar.url}/file{shard}")[0] == 403)


@pytest.mark.parametrize(
    ("flags", "variables", "words"),
    [
        ((), {}, "FOREBAY_TOKEN"),
        ((), {"FOREBAY_TOKEN": TOKEN}, "--strict-origins"),
        (("--strict-origins", "--allow-origin", "s3://b"), {}, "FOREBAY_TOKEN"),
        (("--strict-origins", "--allow-origin", "s3://b"), {"FOREBAY_TOKEN": ""}, "FOREBAY_TOKEN"),
    ],
)
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_are_not_let_in_without_token_and_strict_origins(
    tmp_path: Path, host: str, flags: tuple[str, ...], variables: dict[str, str], words: str
) -> None:
    """The start is refused, exit code 2, one line that says what is missing."""
    done = forebay(tmp_path, "serve", "--host", host, "--port", "0", "--cache-dir", str(tmp_path / "c"), *flags, **variables)
    told = done.stderr.strip()
    held = done.returncode == 2 and words in told and told.count("\n") == 0 and TOKEN not in told
    refused(f"another machine: a start on {host} with {' '.join((*flags, *variables)) or 'nothing'}", held=held)


def test_a_token_on_the_command_line_is_refused(tmp_path: Path) -> None:
    """A command line is public; there is no such flag."""
    done = forebay(tmp_path, "serve", "--token", TOKEN, "--cache-dir", str(tmp_path / "c"))
    refused("another machine: a token as a flag", held=done.returncode == 2 and TOKEN not in done.stderr.replace("--token", ""))


def test_a_client_on_another_address_needs_the_token(tmp_path: Path, shard: Path) -> None:
    """In its header, or as a bearer for /metrics, and nowhere else: neither query, cookie nor a proxy's forwarded header passes for it."""
    with lonely_network(ADDRESS):
        flags = (
            "--cache-size",
            "50MB",
            "--file-root",
            str(shard.parent),
            "--strict-origins",
            "--allow-origin",
            "s3://b",
            "--host",
            ADDRESS,
        )
        with running(tmp_path, *flags, environ={"FOREBAY_TOKEN": TOKEN}) as sidecar:
            url = f"{sidecar.url}/v1/status"
            assert ADDRESS in url
            assert curl("-H", f"Forebay-Token: {TOKEN}", url)[0] == 200
            assert curl("-H", f"Authorization: Bearer {TOKEN}", f"{sidecar.url}/metrics")[0] == 200
            wrong = {
                "no token": (url,),
                "a wrong one": ("-H", "Forebay-Token: x", url),
                "half of it": ("-H", f"Forebay-Token: {TOKEN[:-1]}", url),
                "more than it": ("-H", f"Forebay-Token: {TOKEN}x", url),
                "in other letters": ("-H", f"Forebay-Token: {TOKEN.upper()}", url),
                "twice": ("-H", f"Forebay-Token: {TOKEN}", "-H", f"Forebay-Token: {TOKEN}", url),
                "in the query": (f"{url}?token={TOKEN}&Forebay-Token={TOKEN}",),
                "as a cookie": ("-b", f"Forebay-Token={TOKEN}", url),
                "as a bearer": ("-H", f"Authorization: Bearer {TOKEN}", url),
                "as basic authorization, for metrics": ("-u", f"forebay:{TOKEN}", f"{sidecar.url}/metrics"),
                "a wrong bearer, for metrics": ("-H", "Authorization: Bearer x", f"{sidecar.url}/metrics"),
                "as a bearer, for a shard": ("-H", f"Authorization: Bearer {TOKEN}", f"{sidecar.url}/file{shard}"),
                "a claim to be local": ("-H", "X-Forwarded-For: 127.0.0.1", "-H", "Forwarded: for=127.0.0.1", "-H", "Host: 127.0.0.1", url),
                "for health": (f"{sidecar.url}/healthz",),
                "for the page": (f"{sidecar.url}/",),
                "for a shard": (f"{sidecar.url}/file{shard}",),
            }
            for case, words in wrong.items():
                status, body = curl(*words)
                refused(f"another machine: {case}", held=status in (400, 403) and TOKEN not in body)
            shown = [curl("-H", f"Forebay-Token: {TOKEN}", sidecar.url + path)[1] for path in ("/v1/status", "/v1/shards", "/metrics")]
            assert TOKEN not in sidecar.log_text() + "".join(shown)


def test_the_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the function made for it: what it is asked is the two whole tokens."""
    compared = []
    monkeypatch.setattr(
        "forebay_proxy.server.net.access.hmac.compare_digest", lambda ours, theirs: compared.append((ours, theirs)) or False
    )
    with pytest.raises(AccessRefused):
        Access(1000, token=TOKEN).check(Peer(Where.REMOTE, None), AccessQuestion("GET", "/", token="almost"))
    refused("another machine: guessing the token by time", held=compared == [(TOKEN.encode(), b"almost")])


def test_the_run_file_and_environment_hold_no_token(tmp_path: Path) -> None:
    """Who finds the sidecar still has to know the token; so the way in by environment works on loopback only."""
    with running(tmp_path, "--cache-size", "50MB", environ={"FOREBAY_TOKEN": TOKEN}) as sidecar:
        lines = forebay(tmp_path, "env", FOREBAY_TOKEN=TOKEN).stdout
        written = (tmp_path / "run" / "forebay.json").read_text()
        assert sidecar.url in lines
        refused("another machine: a token in run file or environment lines", held=TOKEN not in lines + written)
