"""The image's Dockerfile as text, the size of what it installs, its probe against a real sidecar; compose with what it mounts."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.deployed import DEPLOY, ROOT, documents, image_environment
from support.ports import free_ports
from support.sidecar import running

from forebay_proxy.server.net.listen import DEFAULT_PORT

DOCKER = DEPLOY / "docker"
MOST_BYTES = 150e6
INSTRUCTIONS = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (DOCKER / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in text.splitlines() if line.strip()]


def stage() -> dict[str, list[str]]:
    """The last stage's instructions, which the image consists of."""
    lines = instructions()
    last = max(index for index, (word, _) in enumerate(lines) if word == "FROM")
    return {word: [rest for found, rest in lines[last:] if found == word] for word in INSTRUCTIONS}


def installed(name: str) -> dict[str, int]:
    """Bytes on the disk by distribution: ``name`` and all it wants, of this environment."""
    found, left = dict[str, int](), {(name, "")}
    while left:
        name, extra = left.pop()
        distribution = metadata.distribution(name)
        files = (Path(str(file.locate())) for file in distribution.files or ())
        found[canonicalize_name(name)] = sum(file.stat().st_size for file in files if file.is_file())
        for wanted in map(Requirement, distribution.requires or ()):
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                left |= {(wanted.name, each) for each in wanted.extras} or {(wanted.name, "")}
    return found


def test_its_packages_are_small_and_hold_no_training_stack() -> None:
    """What `pip install .` brings takes less than 150 MB with its bytecode, and neither torch nor numpy is in it."""
    sizes = installed("forebay")
    assert {"aiohttp", "boto3", "botocore", "diskcache", "requests"} <= set(sizes)
    assert not {"torch", "numpy", "webdataset", "av"} & set(sizes)
    ours = sum(file.stat().st_size for room in ("proxy", "loader", "stage") for file in (ROOT / room).rglob("*") if file.is_file())
    assert sum(sizes.values()) + ours < MOST_BYTES, sizes


def test_the_image_is_made_in_two_stages_and_runs_as_nobody_special() -> None:
    """Only known instructions; sources and pip stay in the first stage; the user is neither root nor 65534, who is never let in."""
    lines = instructions()
    assert {word for word, _ in lines} <= INSTRUCTIONS
    assert [rest.split(" AS ")[1:] for word, rest in lines if word == "FROM"] == [["build"], []]
    last = stage()
    assert last["COPY"][0].startswith("--from=build ")
    assert last["USER"] == ["1000:1000"]
    assert last["VOLUME"] == ["/cache"]
    assert last["EXPOSE"] == [str(DEFAULT_PORT)] == [image_environment()["FOREBAY_PORT"]]
    assert image_environment()["FOREBAY_CACHE_DIR"].startswith("/cache/")
    assert json.loads(last["ENTRYPOINT"][0]) + json.loads(last["CMD"][0]) == ["forebay", "serve"]
    assert not [rest for word, rest in lines if word == "RUN" and "torch" in rest]


def test_all_it_copies_is_there_and_is_sent() -> None:
    """Sources of COPY exist, and the file of ignored paths lets them through."""
    sent = [line[1:] for line in (DOCKER / "Dockerfile.dockerignore").read_text("utf-8").splitlines() if line.startswith("!")]
    copied = [source for word, rest in instructions() if word == "COPY" and "--from" not in rest for source in rest.split()[:-1]]
    assert copied
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert [source for source in copied if not any(fnmatch.fnmatch(source, pattern) for pattern in sent)] == []


def test_the_health_check_tells_a_sidecar_from_none(tmp_path: Path) -> None:
    """The command of HEALTHCHECK and of the pods' probes: 0 for one that serves, 1 where nobody listens."""
    command = json.loads(stage()["HEALTHCHECK"][0].partition("CMD ")[2])
    script = command[1].rpartition("/")[2]
    assert f"COPY deploy/docker/{script} {command[1]}" in (DOCKER / "Dockerfile").read_text("utf-8")

    def probe(port: int, path: str) -> int:
        environ = {"FOREBAY_PORT": str(port), "http_proxy": "http://127.0.0.1:9"}
        return subprocess.run([sys.executable, "-I", DOCKER / script, path], env=environ, check=False, timeout=60).returncode

    assert probe(free_ports(1)[0], "/healthz") == 1
    with running(tmp_path, "--cache-size", "50MB") as sidecar:
        assert [probe(sidecar.port, path) for path in ("/healthz", "/readyz", "/v1/nothing")] == [0, 0, 1]


@pytest.fixture
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = documents(DOCKER / "compose.yaml")[0]["services"]
    return found


def test_what_reads_the_sidecar_shares_its_network_and_user(services: dict[str, dict[str, Any]]) -> None:
    """So it listens on loopback alone; what is published is published on this machine's loopback."""
    assert "FOREBAY_HOST" not in services["forebay"]["environment"]
    for name in ("prometheus", "train"):
        assert services[name]["network_mode"] == "service:forebay"
        assert services[name]["user"] == services["forebay"]["user"] == stage()["USER"][0]
        assert services[name]["depends_on"]["forebay"]["condition"] == "service_healthy"
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", ()))
    assert not [port for port in services["forebay"]["ports"] if port.endswith(f":{DEFAULT_PORT}")]
    assert services["train"]["environment"]["FOREBAY_URL"] == f"http://127.0.0.1:{DEFAULT_PORT}"


def test_what_compose_mounts_is_there_and_is_looked_for(services: dict[str, dict[str, Any]]) -> None:
    """Each file is in the repository, and lies where Prometheus or Grafana is told to look."""
    mounts = [volume.split(":") for service in services.values() for volume in service.get("volumes", ())]
    files = {target: (DOCKER / source).resolve() for source, target, *_ in mounts if source.startswith(".")}
    assert [path for path in files.values() if not path.is_file()] == []
    named = {source for source, *_ in mounts if not source.startswith((".", "/"))}
    assert named == set(documents(DOCKER / "compose.yaml")[0]["volumes"])
    [config] = [word.partition("=")[2] for word in services["prometheus"]["command"] if word.startswith("--config.file")]
    scraped = documents(files[config])[0]
    assert scraped["scrape_configs"][0]["static_configs"] == [{"targets": [f"127.0.0.1:{DEFAULT_PORT}"]}]
    assert all(str(Path(config).parent / rules) in files for rules in scraped["rule_files"])
    [provider] = documents(files["/etc/grafana/provisioning/dashboards/forebay.yaml"])[0]["providers"]
    assert files[f"{provider['options']['path']}/forebay.json"] == ROOT / "proxy/forebay_proxy/dashboard/forebay.json"
    [source] = documents(files["/etc/grafana/provisioning/datasources/forebay.yaml"])[0]["datasources"]
    assert source["url"] == "http://forebay:9090"
    assert "127.0.0.1:9090:9090" in services["forebay"]["ports"]
    assert source["jsonData"]["timeInterval"] == scraped["global"]["scrape_interval"]
