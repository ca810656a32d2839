"""The manifests: their schema, how they fit together, and a pod's settings in a real sidecar with an address besides loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from support.deployed import DEPLOY, ROOT, documents, pod_environment
from support.netns import lonely_network
from support.sidecar import Sidecar, running

FOLDERS = sorted(path for path in (DEPLOY / "kubernetes").iterdir() if path.is_dir())
VERSIONS = ("1.29", kubernetes_validate.latest_version())  # native sidecars are on by default from 1.29
OWN_KINDS = {"Kustomization", "PodMonitor", "PrometheusRule"}  # not Kubernetes' own, so there is no schema of them in the validator
ALERTS = DEPLOY / "kubernetes/monitoring/alerts.yaml"
ADDRESS = "10.20.30.40"


def built_in(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [document for document in found if document["kind"] not in OWN_KINDS]


def manifest(name: str) -> dict[str, Any]:
    [found] = documents(DEPLOY / "kubernetes" / name)
    return found


def pod(name: str) -> dict[str, Any]:
    found: dict[str, Any] = manifest(name)["spec"]["template"]
    return found


def container(found: dict[str, Any]) -> dict[str, Any]:
    """The sidecar among a pod's containers."""
    each = [*found["spec"]["containers"], *found["spec"].get("initContainers", ())]
    [sidecar] = (one for one in each if one["name"] == "forebay")
    return dict(sidecar)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_is_what_its_kustomization_names(folder: Path) -> None:
    """Every resource is there, every manifest is a resource, and Kubernetes' own kinds are valid to the last field."""
    named = manifest(f"{folder.name}/kustomization.yaml")["resources"]
    assert [name for name in named if not (folder / name).exists()] == []
    assert {path.name for path in folder.iterdir()} == {name for name in named if "/" not in name} | {"kustomization.yaml"}
    for document in built_in([each for path in folder.glob("*.yaml") for each in documents(path)]):
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.needs("kubectl")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_kustomize_builds_it(folder: Path) -> None:
    """What comes out is valid too, and names the image of the registry everywhere."""
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    made = list(yaml.safe_load_all(done.stdout))
    for document in built_in(made):
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
    assert "image: forebay\n" not in done.stdout
    if folder.name == "monitoring":
        [dashboard] = (each for each in made if each["kind"] == "ConfigMap")
        assert dashboard["data"] == {"forebay.json": (ROOT / "proxy/forebay_proxy/dashboard/forebay.json").read_text("utf-8")}


def test_the_alerts_are_those_of_grafana() -> None:
    """Below ``spec``, word for word."""
    head, _, rules = ALERTS.read_text("utf-8").partition("spec:\n")
    groups = (ROOT / "proxy/forebay_proxy/dashboard/alerts.yml").read_text("utf-8").partition("groups:\n")
    wanted = "".join(f"  {line}" if line.strip() else line for line in (groups[1] + groups[2]).splitlines(keepends=True))
    source = "proxy/forebay_proxy/dashboard/alerts.yml"
    again = f"{{ sed '/^spec:/q' {ALERTS.relative_to(ROOT)}; sed -n '/^groups:/,$p' {source} | sed 's/^./  &/'; }} > FILE"
    assert rules == wanted, f"make it anew: {again}"
    assert "kind: PrometheusRule" in head


def test_the_job_waits_for_its_sidecar_and_ends_with_its_training() -> None:
    """A native sidecar: an init container that stays, with a startup probe; of one user with the training, which shares its sockets."""
    found = pod("job/job.yaml")["spec"]
    [sidecar] = found["initContainers"]
    [training] = found["containers"]
    assert (sidecar["restartPolicy"], found["restartPolicy"]) == ("Always", "Never")
    assert sidecar["startupProbe"]["exec"]["command"][-1] == "/readyz"
    assert found["securityContext"]["runAsUser"] == 1000
    assert not [each for each in (sidecar, training) if "runAsUser" in each["securityContext"]]
    mounts = [{each["name"]: each["mountPath"] for each in one["volumeMounts"]} for one in (sidecar, training)]
    assert mounts[0]["run"] == mounts[1]["run"] == str(Path(pod_environment(sidecar)["FOREBAY_SOCKET"]).parent)
    assert pod_environment(training)["FOREBAY_URL"] == f"http://127.0.0.1:{sidecar['ports'][0]['containerPort']}"


def test_the_node_sidecar_is_found_by_its_service() -> None:
    """Of its own node only; the folder of the node is made its user's first."""
    service, template = manifest("daemonset/service.yaml"), pod("daemonset/daemonset.yaml")
    assert service["spec"]["internalTrafficPolicy"] == "Local"
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert service["spec"]["selector"].items().isdisjoint(pod("job/job.yaml")["metadata"]["labels"].items())
    sidecar = container(template)
    assert service["spec"]["ports"][0]["targetPort"] == sidecar["ports"][0]["name"]
    [owner] = template["spec"]["initContainers"]
    assert f"--owner={template['spec']['securityContext']['runAsUser']}" in owner["command"]
    assert owner["volumeMounts"] == [each for each in sidecar["volumeMounts"] if each["name"] == "cache"]


@pytest.mark.parametrize("name", ["job/job.yaml", "daemonset/daemonset.yaml"])
def test_the_pod_monitor_finds_a_pod(name: str) -> None:
    """By label and by the port's name, with the token that the sidecar has."""
    monitor = manifest("monitoring/podmonitor.yaml")["spec"]
    template = pod(name)
    sidecar = container(template)
    [endpoint] = monitor["podMetricsEndpoints"]
    assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert endpoint["port"] == sidecar["ports"][0]["name"]
    [token] = (each["valueFrom"]["secretKeyRef"] for each in sidecar["env"] if each["name"] == "FOREBAY_TOKEN")
    assert endpoint["authorization"]["credentials"] == token
    assert endpoint["honorLabels"] is False


def status_of(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def probed(sidecar: Sidecar, command: list[str]) -> int:
    """A probe of kind exec, as a process of the container."""
    script = DEPLOY / "docker" / Path(command[1]).name
    environ = {**os.environ, "FOREBAY_PORT": str(sidecar.port)}
    return subprocess.run([sys.executable, script, *command[2:]], env=environ, check=False, timeout=60).returncode


def test_a_pod_is_scraped_with_the_token_and_read_without(tmp_path: Path) -> None:
    """The Job's settings: Prometheus comes by the pod's address as the PodMonitor says, training by loopback, a kubelet runs the probes.

    The cache lies in a folder that everybody may write to, as the kubelet makes an emptyDir with an fsGroup.
    """
    sidecar = container(pod("job/job.yaml"))
    (volume := tmp_path / "cache").mkdir()
    volume.chmod(0o2777)
    environ = pod_environment(sidecar) | {"FOREBAY_CACHE_SIZE": "50MB"}
    del environ["FOREBAY_SOCKET"]
    with lonely_network(ADDRESS), running(tmp_path, environ=environ, cache="cache/forebay") as found:
        outside = f"http://{ADDRESS}:{found.port}"
        token = environ["FOREBAY_TOKEN"]
        assert status_of(f"{outside}/metrics", Authorization=f"Bearer {token}") == 200
        assert status_of(f"{outside}/metrics") == 403
        assert status_of(f"{outside}/v1/status", Authorization=f"Bearer {token}") == 403
        assert status_of(f"{outside}/v1/status", **{"Forebay-Token": token}) == 200
        assert status_of(f"http://127.0.0.1:{found.port}/v1/status") == 200
        for kind in ("startupProbe", "livenessProbe"):
            assert probed(found, sidecar[kind]["exec"]["command"]) == 0
