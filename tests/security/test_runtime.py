"""What a running sidecar does besides moving bytes: it starts no process, unpickles nothing, unfolds nothing, and trusts no certificate it
was not given."""

from __future__ import annotations

import ast
import gzip
import json
import os
import ssl
import subprocess
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.refusals import refused
from support.scripted_origin import ScriptedOrigin, in_a_thread
from support.sidecar import environment, running
from support.tls import Authority

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "proxy").rglob("*.py"), *(ROOT / "loader").rglob("*.py")])

# Read at the start of every Python below: each process it starts and each object it unpickles is written down.
WATCH = """
import os, sys

def watch(event, arguments):
    if event in EVENTS:
        with open(os.environ["FOREBAY_TEST_WATCH"], "a") as file:
            file.write(event + " " + repr(arguments)[:200] + "\\n")

EVENTS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn",
          "pickle.find_class"}
sys.addaudithook(watch)
"""


BOMB = gzip.compress(b"\0" * 10_000_000)  # would unfold to a hundred times its size
SHARD = b"shard" * 1000


@contextmanager
def origin(tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Its URL."""
    with in_a_thread(ScriptedOrigin(tls=tls)) as made:
        made.put("/gzip", BOMB, encoding="gzip")
        for number in range(2):
            made.put(f"/{number}.tar", SHARD)
        yield made.base


def test_a_sidecar_starts_no_process_and_unpickles_nothing(tmp_path: Path) -> None:
    """Through a start, fetches, a restart over its index, failures and an end: Python's own audit events say so."""
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "sitecustomize.py").write_text(WATCH)
    seen = tmp_path / "events"
    path = os.pathsep.join([str(tmp_path / "watch"), environment(tmp_path)["PYTHONPATH"]])
    with origin() as url:
        for _ in range(2):
            watched = {"PYTHONPATH": path, "FOREBAY_TEST_WATCH": str(seen)}
            with running(tmp_path, "--cache-size", "50MB", allow=[url], environ=watched) as sidecar:
                assert sidecar.ask(sidecar.proxied(f"{url}/0.tar").removeprefix(sidecar.url)) == SHARD
                sidecar.plan("j/0/0/1", [f"{url}/1.tar"])
                with pytest.raises(urllib.error.HTTPError):
                    sidecar.ask("/s3/no-such-bucket-of-ours/0.tar?endpoint=http://127.0.0.1:1")
                sidecar.ask("/v1/evict", b'{"all": true}')
    witnessed = {**os.environ, "PYTHONPATH": path, "FOREBAY_TEST_WATCH": str(seen)}
    subprocess.run(["python", "-c", "import subprocess; subprocess.run(['true'])"], env=witnessed, check=True)
    events = seen.read_text().splitlines()
    witness, ours = events[-1:], events[:-1]
    assert witness
    assert witness[0].startswith(("subprocess.Popen", "os.posix_spawn", "os.fork"))
    refused("runtime: a process, a shell", held=[line for line in ours if not line.startswith("pickle") and "true" not in line] == [])
    refused("runtime: an unpickled object", held=[line for line in ours if line.startswith("pickle")] == [])


def test_no_source_turns_tls_verification_off() -> None:
    """No ``ssl=False``, no ``verify=False``, no unverified context, no host name unchecked."""
    found = []
    words = ("ssl", "verif", "check_hostname", "CERT_")  # a source without one of these has none of what is looked for
    for path in SOURCES:
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if any(word in text for word in words) else ():
            if isinstance(node, ast.keyword) and node.arg in ("ssl", "verify", "verify_ssl", "check_hostname", "use_ssl"):
                found += [f"{path.name}:{node.value.lineno}"] * (isinstance(node.value, ast.Constant) and node.value.value in (False, None))
            if isinstance(node, ast.Attribute | ast.Name):
                name = node.attr if isinstance(node, ast.Attribute) else node.id
                found += [f"{path.name}:{node.lineno}"] * (
                    name in ("CERT_NONE", "CERT_OPTIONAL", "_create_unverified_context", "_create_stdlib_context")
                )
            if isinstance(node, ast.Assign):
                found += [
                    f"{path.name}:{node.lineno}"
                    for target in node.targets
                    if isinstance(target, ast.Attribute) and target.attr == "check_hostname"
                ]
    refused("runtime: a source that turns TLS off", held=found == [])


def test_an_unknown_certificate_is_refused_whatever_the_environment_says(tmp_path: Path) -> None:
    """None of the switches that other tools know turns it off; the operator's own bundle is the only way."""
    switches = {
        "PYTHONHTTPSVERIFY": "0", "CURL_INSECURE": "1", "GIT_SSL_NO_VERIFY": "1", "AWS_NO_VERIFY_SSL": "1",
        "NODE_TLS_REJECT_UNAUTHORIZED": "0",
    }  # fmt: skip
    authority = Authority(tmp_path)
    with origin(authority.server("127.0.0.1")) as url:
        with running(tmp_path, "--cache-size", "50MB", allow=[url], environ=switches) as sidecar:
            with pytest.raises(urllib.error.HTTPError) as caught:
                sidecar.ask(sidecar.proxied(f"{url}/0.tar").removeprefix(sidecar.url))
            body = json.loads(caught.value.read())
            caught.value.close()
        refused("runtime: an unknown certificate", held=body["status"] in (502, 503))
        with running(tmp_path, "--cache-size", "50MB", allow=[url], environ={"SSL_CERT_FILE": str(authority.bundle)}) as sidecar:
            assert sidecar.ask(sidecar.proxied(f"{url}/0.tar").removeprefix(sidecar.url)) == SHARD


def test_an_encoded_body_is_kept_as_sent(tmp_path: Path) -> None:
    """What would unfold to ten megabytes stays ten kilobytes, in the cache and on the wire, and is labelled."""
    with origin() as url, running(tmp_path, "--cache-size", "50MB", allow=[url]) as sidecar:
        body = sidecar.ask(sidecar.proxied(f"{url}/gzip").removeprefix(sidecar.url))
        stored = sidecar.status()["cache"]["stored_bytes"]
    refused("runtime: a decompression bomb", held=body == BOMB and stored < 100_000)


def test_every_client_session_leaves_bodies_folded() -> None:
    """``auto_decompress=False`` wherever the client library is used; its default would unfold."""
    calls = [
        (path.name, {word.arg: word.value for word in node.keywords})
        for path in SOURCES
        if "ClientSession" in (text := path.read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) == "ClientSession"
    ]
    kept = [
        name for name, words in calls if isinstance(words.get("auto_decompress"), ast.Constant) and words["auto_decompress"].value is False
    ]
    refused("runtime: a session that unfolds bodies", held=calls != [] and len(kept) == len(calls))
