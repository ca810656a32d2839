"""What the files of deploy/ tell a sidecar: the environment and the grace period of each place where it is started."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

__all__ = ["DEPLOY", "ROOT", "Place", "documents", "image_environment", "places", "pod_environment", "unit_values"]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


@dataclass(frozen=True)
class Place:
    """One sidecar of deploy/: its whole environment, and how long it has after SIGTERM."""

    name: str
    environ: dict[str, str]
    grace_s: float


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def image_environment() -> dict[str, str]:
    """ENV of the image, in which every container starts."""
    text = (DEPLOY / "docker/Dockerfile").read_text("utf-8").replace("\\\n", " ")
    return dict(pair.split("=", 1) for line in re.findall(r"^ENV (.*)$", text, re.MULTILINE) for pair in line.split())


def pod_environment(container: dict[str, Any]) -> dict[str, str]:
    """A container's ``env``; what comes from a Secret is a word of the test's."""
    return {each["name"]: each.get("value", "from-a-secret") for each in container["env"]}


def unit_values(key: str) -> list[str]:
    """All values of ``key`` in the systemd unit."""
    return re.findall(rf"^{key}=(.*)$", (DEPLOY / "systemd/forebay.service").read_text("utf-8"), re.MULTILINE)


def places() -> Iterator[Place]:
    image = image_environment()
    compose = documents(DEPLOY / "docker/compose.yaml")[0]["services"]["forebay"]
    yield Place("compose", image | compose["environment"], float(compose["stop_grace_period"].removesuffix("s")))
    yield Place("systemd", dict(value.split("=", 1) for value in unit_values("Environment")), float(unit_values("TimeoutStopSec")[0]))
    for name, kind in (("job/job.yaml", "initContainers"), ("daemonset/daemonset.yaml", "containers")):
        pod = documents(DEPLOY / "kubernetes" / name)[0]["spec"]["template"]["spec"]
        [container] = (each for each in pod[kind] if each["name"] == "forebay")
        yield Place(name, image | pod_environment(container), pod["terminationGracePeriodSeconds"])
