"""Planted secrets: a real sidecar at its most talkative is given one of every kind, driven through success, failure, redirect and crash.
Then everything it has written, printed or answered is searched."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.cli import invoke
from support.leaks import Leaks, sent_to
from support.netns import lonely_network
from support.refusals import searched
from support.scripted_origin import ScriptedOrigin, in_a_thread
from support.sidecar import FOREBAY, Sidecar, environment, start

FAR = "198.51.100.7"  # of no machine (RFC 5737); here a name for an origin behind the upstream proxy
PASSWORD = "CANARYuserinfo41"
UNKNOWN = "PLAINparameter51"  # in a query, and not among the signatures we know: part of the shard's name

# One of each kind. Letters and digits only: percent-encoding, JSON and XML leave them as they are.
HEADERS = {
    "Authorization": "Bearer CANARYauthorization01",
    "Cookie": "session=CANARYcookie02",
    "X-Amz-Security-Token": "CANARYheadertoken03",
    "X-Vault-Token": "CANARYvault04",
    "X-Api-Key": "CANARYapikey05",
}
SIGNATURES = {
    "s3 v4": "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=CANARYcredential11%2F20260101&X-Amz-Security-Token=CANARYsession12"
    "&X-Amz-Signature=CANARYsignature13",
    "s3 v2": "AWSAccessKeyId=CANARYkeyid14&Signature=CANARYsigvtwo15&Expires=1",
    "gcs": "X-Goog-Signature=CANARYgoog16&X-Goog-Credential=CANARYgoogid17",
    "azure": "sv=2024&sr=b&sp=r&se=2027&sig=CANARYazuresig18&skoid=CANARYazureoid19",
    "cloudfront": "Policy=CANARYpolicy20&Key-Pair-Id=CANARYkeypair21&Signature=CANARYcf22",
    "oss v1": "OSSAccessKeyId=CANARYossid23&Expires=1&Signature=CANARYossig24&security-token=CANARYosstoken25",
    "oss v4": "x-oss-signature-version=4&x-oss-credential=CANARYosscred26&x-oss-signature=CANARYossfour27",
    "cos": "q-sign-algorithm=sha1&q-ak=CANARYcosak28&q-signature=CANARYcossig29&x-cos-security-token=CANARYcostoken30",
    "tos": "X-Tos-Credential=CANARYtoscred42&X-Tos-Signature=CANARYtossig43",
    "b2": "Authorization=CANARYbtwo44",
    "bunny": "token=CANARYbunny45&expires=1&token_path=CANARYbunnypath46",
    "akamai": "hdnea=exp=1~acl=/*~hmac=CANARYakamai47",
    "onedrive": "tempauth=CANARYonedrive48&rlkey=CANARYdropbox49",
    "plain words": "access_token=CANARYaccess50&private_token=CANARYprivate52&api_key=CANARYquerykey53&jwt=CANARYjwt54&auth=CANARYauth55",
    "qiniu": "e=1767225600&token=CANARYqiniu61",
    "ucloud": "UCloudPublicKey=CANARYucloudid62&Expires=1&Signature=CANARYucloud63",
    "baidu": "authorization=bce-auth-v1%2FCANARYbaidu64&x-bce-security-token=CANARYbaidusts65",
    "more words": "Ocp-Apim-Subscription-Key=CANARYapim66&X-Plex-Token=CANARYplex67&accesskey=CANARYaccesskey68&pwd=CANARYpwd69",
    "half a signature": "X-Amz-Security-Token=CANARYhalf56&X-Goog-Signature=CANARYhalf57&sig=CANARYhalf58",
    "named by the operator": "ticket=CANARYticket59",
    "behind a semicolon": "part=2;token=CANARYsemicolon60",
}
VARIABLES = {
    "AWS_ACCESS_KEY_ID": "CANARYAWSKEYID31",
    "AWS_SECRET_ACCESS_KEY": "CANARYawssecret32",
    "AWS_SESSION_TOKEN": "CANARYawssession33",
    "HF_TOKEN": "hf_CANARYhftoken34",
    "FOREBAY_TOKEN": "CANARYforebaytoken35",
    "HTTP_PROXY": "http://CANARYproxyuser36:CANARYproxypass37@127.0.0.1:9",
    "AZURE_STORAGE_KEY": "CANARYazurekey38",
}


def canaries() -> list[bytes]:
    """Every planted word, and the form that Basic authentication gives the userinfo."""
    found = set(re.findall(r"CANARY\w+?\d\d", " ".join((*HEADERS.values(), *SIGNATURES.values(), *VARIABLES.values(), PASSWORD))))
    return [word.encode() for word in sorted(found)] + [base64.b64encode(f"user:{PASSWORD}".encode()).rstrip(b"=")]


# Read by the sidecar's Python at its start: three faults of ours whose messages hold a secret, and one that ends the process.
FAULTS = """
import os, sys

def plant():
    from forebay_proxy.cache.fetching import sink
    from forebay_proxy.cache.readers import active_readers
    from forebay_proxy.server.http import shard_route
    boom = "http://user:CANARYuserinfo41@h/?X-Amz-Signature=CANARYsignature13 Bearer CANARYauthorization01"
    decide = shard_route.decide
    def faulty_decide(asked, shard, version, key):
        if "fault-answer" in shard:
            raise RuntimeError(boom)
        return decide(asked, shard, version, key)
    shard_route.decide = faulty_decide
    put = sink.Sink.put
    async def faulty_put(self, piece):
        if "fault-landing" in self._entry.name:
            raise KeyError(boom) from ValueError(boom)
        await put(self, piece)
    sink.Sink.put = faulty_put
    let_rest = active_readers.ActiveReaders.let_rest
    def faulty_let_rest(self, now):
        if os.path.exists(os.environ["FOREBAY_TEST_CRASH"]):
            raise RuntimeError(boom)
        return let_rest(self, now)
    active_readers.ActiveReaders.let_rest = faulty_let_rest

if sys.argv[0] == "-m" or "forebay" in " ".join(sys.orig_argv):
    plant()
"""


@dataclass
class Search:
    """Everything that was written, printed or answered, by place."""

    places: dict[str, bytes] = field(default_factory=dict)

    def add(self, place: str, content: bytes | str) -> None:
        self.places[f"{len(self.places)} {place}"] = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content

    def files(self, top: Path) -> None:
        """Names and bytes of everything below ``top``."""
        for path in [top, *top.rglob("*")]:
            name = os.fsencode(str(path.relative_to(top.parent)))
            self.add(f"name {path.name}", name)
            if path.is_file():
                self.add(f"file {path.name}", path.read_bytes())

    def hits(self) -> list[str]:
        words = canaries()
        encoded = [word for word in words if b"CANARY" not in word]  # the others are looked for one by one only where there is any
        found = ((place, content, words if b"CANARY" in content else encoded) for place, content in self.places.items())
        return [f"{word.decode()} in {place}" for place, content, some in found for word in some if word in content]


def ask(
    sidecar: Sidecar, search: Search, method: str, target: str, headers: dict[str, str] | None = None, body: bytes | None = None
) -> int:
    """One request over a connection of its own; what was answered is kept for the search, and its status returned."""
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(sidecar.url).port or 0, timeout=120)
    try:
        connection.request(method, target, body, headers or {})
        answer = connection.getresponse()
        content = b""
        try:
            content = answer.read()
        except http.client.HTTPException as error:
            content = repr(error).encode()
        search.add(f"answer to {method} {target.partition('?')[0]}", f"{answer.status} {answer.getheaders()}".encode() + content)
        return answer.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


KINDS = ("ok", "denied", "missing", "broken", "redirect", "away", "loop", "cut", "nonsense", "busy", "fault-answer", "fault-landing")
TELLING = ("ok", "denied", "redirect", "nonsense")  # these get every kind of signature


def read_everything(sidecar: Sidecar, origin: ScriptedOrigin, search: Search) -> set[int]:
    """Each way an origin can answer, with each way to prove oneself."""
    host = f"127.0.0.1:{origin.port}"
    wishes: list[tuple[str, str, dict[str, str]]] = []
    for kind in KINDS:
        signed = SIGNATURES if kind in TELLING else {"s3 v4": SIGNATURES["s3 v4"]}
        wishes += [("GET", f"/http/{host}/{kind}-{name.replace(' ', '')}.tar?{query}", {}) for name, query in signed.items()]
        wishes += [(method, f"/http/{host}/{kind}-{method}.tar", HEADERS) for method in ("GET", "HEAD")]
        wishes += [
            ("GET", f"/http/user:{PASSWORD}@{host}/{kind}-userinfo.tar", {}), ("GET", f"/s3/bucket/{kind}-key.tar", {}),
            ("GET", f"/hf/datasets/org/name/{kind}.tar", {}), ("GET", f"/http/{host}/{kind}-plain.tar?coupon={UNKNOWN}", {}),
        ]  # fmt: skip
    for target in (
        f"/http/user:{PASSWORD}@{FAR}/x.tar?{SIGNATURES['s3 v4']}", f"/https/{FAR}/x.tar?{SIGNATURES['azure']}",
        f"/ftp/user:{PASSWORD}@h/x",
        f"/s3/{PASSWORD}@bucket/x", f"/https/user:{PASSWORD}@h:99999/x", f"/https/user:{PASSWORD}/@h/x",
        f"/http/169.254.169.254/x?{SIGNATURES['s3 v2']}",
        f"/s3/b/k?endpoint=http://user:{PASSWORD}@h", f"/v1/nothing?{SIGNATURES['gcs']}", f"http://user:{PASSWORD}@h/absolute",
        f"/file/etc/x?sig={PASSWORD}",
    ):  # fmt: skip
        wishes += [("GET", target, HEADERS), ("PUT", target, HEADERS)]
    with ThreadPoolExecutor(8) as pool:
        return set(pool.map(lambda wish: ask(sidecar, search, *wish), wishes))


def command_everything(sidecar: Sidecar, origin: ScriptedOrigin, search: Search) -> None:
    """Plans, warm-ups and evictions that carry secrets, good and bad ones."""
    urls = [f"{origin.base}/plan-{kind}.tar?{SIGNATURES['s3 v4']}" for kind in KINDS]
    urls += [f"http://user:{PASSWORD}@127.0.0.1:{origin.port}/plan-userinfo.tar"]
    for body in (
        {"shards": urls},
        {"shards": [*urls, f"bad://user:{PASSWORD}@h?{SIGNATURES['azure']}"]},
        {"shards": [f"s3://{PASSWORD}@b/k"]},
    ):
        ask(sidecar, search, "PUT", "/v1/plans/j/0/0/1", HEADERS, json.dumps(body).encode())
        ask(sidecar, search, "POST", "/v1/warm", HEADERS, json.dumps(body).encode())
        ask(sidecar, search, "POST", "/v1/evict", HEADERS, json.dumps(body).encode())
    for shard in (*urls, f"s3://b/k?sig={PASSWORD}"):
        totals = {"wall_s": 1, "stall_s": {"origin": 1}, "steps": 1, "slowest_shard": shard}
        assert ask(sidecar, search, "POST", "/v1/meter/j/0/main/1.0", HEADERS, json.dumps(totals).encode()) == 204
        assert ask(sidecar, search, "GET", "/v1/meter/j", HEADERS) == 200


def look_everywhere(sidecar: Sidecar, search: Search) -> None:
    """Each path of ours that shows something."""
    for path in ("/", "/page/status.js", "/v1/status", "/v1/shards", "/v1/plans", "/metrics", "/healthz", "/readyz"):
        assert ask(sidecar, search, "GET", path) == 200
    search.add("arguments", Path(f"/proc/{sidecar.process.pid}/cmdline").read_bytes())


def run_every_verb(sidecar: Sidecar, origin: ScriptedOrigin, directory: Path, environ: dict[str, str], search: Search) -> None:
    """What a person types, with secrets in URLs and environment, and what is printed."""
    signed = f"{origin.base}/cli.tar?{SIGNATURES['s3 v4']}"
    curl = f"pipe:curl -s -u user:{PASSWORD} -H 'Authorization: {HEADERS['Authorization']}' {origin.base}/c.tar"
    commands = (
        ("status",), ("status", "--json"), ("ls",), ("ls", "--json"), ("config", "show"), ("config", "show", "--json"), ("env",),
        ("warm", signed), ("warm", f"{origin.base}/denied-cli.tar?{SIGNATURES['azure']}"), ("warm", curl), ("warm",
        f"bad://u:{PASSWORD}@h/x"),
        ("warm", "--json", signed), ("evict", signed), ("evict", signed.replace("cli", "cli*")), ("evict", f"bad://u:{PASSWORD}@h/x"),
        ("check", signed), ("check", curl),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**environment(directory, **environ), "FOREBAY_URL": sidecar.url}.items():
            patch.setenv(name, value)
        for words in commands:
            done = invoke(*words)
            search.add(f"forebay {words[0]}", done.stdout + done.stderr)
    for words in (("serve", "--host", "0.0.0.0"), ("serve", "--cache-dir", str(sidecar.cache_dir)), ("run", "--", "true")):
        program = [*FOREBAY, *words]
        environ = {**environment(directory, **environ), "FOREBAY_URL": sidecar.url}
        told = subprocess.run(program, env=environ, cwd=directory, capture_output=True, timeout=240, check=False)
        search.add(f"forebay {words[0]}", told.stdout + told.stderr)


def test_what_is_known_as_a_secret_only_now_leaves_the_disk(tmp_path: Path) -> None:
    """Rows of an earlier start, or of an earlier version, name shards with it: they go, their bytes with them, and nothing is left."""

    def planted() -> list[str]:
        search = Search()
        search.files(tmp_path / "cache")
        return [place for place, content in search.places.items() if b"CANARYticket59" in content]

    with in_a_thread(ScriptedOrigin(anything=Leaks())) as origin:
        targets = [f"/http/127.0.0.1:{origin.port}/ok-{number}.tar?v=1&ticket=CANARYticket59" for number in range(40)]
        sidecar = start(tmp_path, "--cache-size", "60MB", allow=[origin.base])
        assert {ask(sidecar, Search(), "GET", target) for target in targets} == {200}
        sidecar._end(signal.SIGTERM)
        assert planted(), "it was no secret then"
        again = start(tmp_path, "--cache-size", "60MB", "--secret-param", "ticket", allow=[origin.base])
        shown = Search()
        assert ask(again, shown, "GET", targets[0]) == 200
        look_everywhere(again, shown)
        assert [shard for shard in again.shards() if "ticket" in shard] == []
        assert list(again.shards()) == [f"{origin.base}/ok-0.tar?v=1"]
        again._end(signal.SIGTERM)
    assert planted() == []
    assert shown.hits() == []
    assert "CANARYticket59" not in (tmp_path / "sidecar.log").read_text()


@pytest.fixture
def network() -> Iterator[None]:
    with lonely_network(FAR):
        yield


@pytest.mark.usefixtures("network")
def test_no_planted_secret_is_written_printed_or_answered(tmp_path: Path) -> None:
    """0 hits in everything: log at debug, cache, index and its log, file names, run file, arguments, answers, page, command line."""
    (tmp_path / "plant").mkdir()
    (tmp_path / "plant" / "sitecustomize.py").write_text(FAULTS)
    search, crash, leaks = Search(), tmp_path / "crash", Leaks()
    with in_a_thread(ScriptedOrigin(anything=leaks)) as origin:
        variables = {**VARIABLES, "AWS_ENDPOINT_URL": origin.base, "HF_ENDPOINT": origin.base}
        variables |= {"AWS_REGION": "us-east-1", "PYTHONASYNCIODEBUG": "1"}
        path = os.pathsep.join([str(tmp_path / "plant"), environment(tmp_path)["PYTHONPATH"]])
        planted = {**variables, "PYTHONPATH": path, "FOREBAY_TEST_CRASH": str(crash)}
        flags = ("--cache-size", "60MB", "--log-level", "debug", "--retry-budget-s", "0.2", "--secret-param", "Ticket")
        flags += ("--allow-origin", origin.base, "--access-log", str(tmp_path / "access.log"))
        sidecar = start(tmp_path, *flags, environ=planted)
        try:
            statuses = read_everything(sidecar, origin, search)
            assert {200, 403, 404, 500, 502, 503} <= statuses, statuses
            assert leaks.echoes > 20
            assert {"CANARYauthorization01", "CANARYsignature13"} <= {word for text in sent_to(origin) for word in text.split()}, (
                "they reached the origin"
            )
            command_everything(sidecar, origin, search)
            run_every_verb(sidecar, origin, tmp_path, variables, search)
            look_everywhere(sidecar, search)
            search.files(tmp_path / "cache")  # while its index is open: the write-ahead log too
            crash.touch()
            assert sidecar.process.wait(240) != 0
            assert "RuntimeError" in sidecar.log_text()
        finally:
            sidecar.kill()
        again = start(tmp_path, *flags, environ=planted | {"FOREBAY_TEST_CRASH": str(tmp_path / "never")})
        look_everywhere(again, search)
        again._end(signal.SIGTERM)
    search.files(tmp_path / "cache")
    search.files(tmp_path / "run")
    search.add("log", (tmp_path / "sidecar.log").read_bytes())
    search.add("access log", (tmp_path / "access.log").read_bytes())
    hits = search.hits()
    searched(len(canaries()), len(search.places), len(hits))
    assert not hits, "\n".join(hits)
    assert len(search.places) > 200
    named = [place for place, content in search.places.items() if UNKNOWN.encode() in content]
    allowed = re.compile(r"\d+ (answer to GET /v1/(status|shards|plans)|file cache\.db\S*|forebay (ls|status))")
    assert [place for place in named if not allowed.match(place)] == [], "a name's query is shown in lists of names only"
    assert (tmp_path / "access.log").read_bytes().count(b"-plain.tar") == len(KINDS)
    assert b"fault in Forebay itself" in (tmp_path / "sidecar.log").read_bytes()
