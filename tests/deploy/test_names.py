"""Whatever deploy/ names exists: flags, variables, files; and every place of it starts a sidecar that is content with its settings."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from support.cli import verbs
from support.deployed import DEPLOY, ROOT, Place, places

from forebay_proxy.app.shutdown import CLOSE_S
from forebay_proxy.config.settings import PREFIX, load
from forebay_proxy.server.net.listen import DEFAULT_PORT

FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
FOREIGN = {
    "--interval", "--timeout", "--start-period", "--retries", "--from", "--network", "--user", "--time", "--profile",  # of Docker
    "--without-pip", "--python", "--no-cache-dir",  # of pip and venv
    "--uid", "--user-group", "--no-create-home", "--home-dir", "--system", "--directory", "--owner", "--group", "--mode",  # of Debian's
    "--now",  # of systemctl
    "--from-literal",  # of kubectl
    "--nodes", "--ntasks-per-node", "--gpus-per-node", "--tmp", "--job-name",  # of Slurm
    "--reuid", "--regid", "--init-groups", "--inh-caps", "--one-file-system",  # of setpriv and rm
    "--nproc-per-node", "--nnodes", "--rdzv-backend", "--rdzv-endpoint",  # of torchrun
    "--runtime-env", "--working-dir", "--address", "--block",  # of Ray
}  # fmt: skip
PROMETHEUS = {"--config.file", "--storage.tsdb.path", "--storage.tsdb.retention.size"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def flags_of(command: click.Command) -> set[str]:
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return {flag for parameter in command.params for flag in parameter.opts}.union(*map(flags_of, inner))


def variables(path: Path) -> set[str]:
    return set(re.findall(rf"\b{PREFIX}[A-Z_]+", path.read_text("utf-8")))


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_what_a_file_names_exists(path: Path) -> None:
    """Flags are Forebay's or those of a known program, FOREBAY_ variables are in docs/settings.md, files are in the repository."""
    text = path.read_text("utf-8")
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z.-]*[a-z]", text)) - FOREIGN - PROMETHEUS
    assert flags <= set().union(*map(flags_of, verbs().values()))
    assert variables(path) <= variables(ROOT / "docs/settings.md")
    no_images = re.sub(r"image: .*", "", text)
    named = re.findall(r"(?<![\w./-])(?:\.\./)*(?:tests|docs|deploy|grafana|proxy|loader)/[\w./-]*\w", no_images)
    assert [name for name in named if not (ROOT / name.replace("../", "")).exists()] == []
    assert set(re.findall(r"\b70\d\d\b", text)) <= {str(DEFAULT_PORT)}


@pytest.mark.parametrize("place", [*places()], ids=lambda place: place.name)
def test_a_place_is_a_whole_set_of_settings(place: Place) -> None:
    """A sidecar takes them without a word, its size is named, and the grace period outlasts a drain and the end after it."""
    settings = load({}, place.environ)
    assert [text for text in settings.notices if "token" not in text] == []
    assert settings.cache_size is not None
    assert settings.cache_dir is not None
    assert settings.port == DEFAULT_PORT
    assert place.grace_s >= settings.drain_timeout_s + CLOSE_S


def test_every_place_is_on_the_page() -> None:
    """docs/deploy.md names each folder, and each file says what of it was run and what was not, where a tool was missing."""
    page = (ROOT / "docs/deploy.md").read_text("utf-8")
    assert [folder.name for folder in DEPLOY.iterdir() if f"deploy/{folder.name}" not in page] == []
    unsaid = [relative(path) for path in FILES if path.name in SAYING and "Run so far:" not in path.read_text("utf-8")]
    assert unsaid == []


SAYING = {
    "Dockerfile", "compose.yaml", "forebay.service", "job.yaml", "daemonset.yaml", "podmonitor.yaml", "prolog.sh", "train.sbatch",
    "runtime_env.yaml",
}  # fmt: skip
