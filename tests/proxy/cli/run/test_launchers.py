"""Which commands belong in front of ``forebay run``, and what is said of them."""

from __future__ import annotations

import pytest

from forebay_proxy.cli.run.launchers import elsewhere, refusal


@pytest.mark.parametrize("command", ["mpirun", "/opt/ompi/bin/mpiexec", "orterun", "jsrun"])
def test_mpi_launchers(command: str) -> None:
    """Their tasks run on other nodes: each needs a forebay run of its own."""
    name = command.rpartition("/")[2]
    assert f"write: {name} … forebay run -- python train.py" in refusal([command, "-n", "8", "python", "train.py"])


@pytest.mark.parametrize("command", ["sbatch", "salloc", "qsub"])
def test_queues(command: str) -> None:
    """What they start runs elsewhere and later."""
    assert "in the job's script: srun --ntasks-per-node=N forebay run -- python train.py" in refusal([command, "job.sh"])


def test_srun_keeps_its_number_of_tasks() -> None:
    """The line can be typed as it stands."""
    assert refusal(["/usr/bin/srun", "-N", "2", "--ntasks-per-node=4", "python"]).endswith(
        "srun --ntasks-per-node=4 forebay run -- python train.py"
    )


@pytest.mark.parametrize("command", ["python", "torchrun", "accelerate", "/home/me/srun.py", "sh"])
def test_what_runs_here(command: str) -> None:
    """Launchers of one node, and anything else, are run."""
    assert refusal([command, "srun"]) == ""


@pytest.mark.parametrize("command", ["docker", "/usr/bin/podman", "kubectl", "ssh"])
def test_what_runs_apart_is_told_of(command: str) -> None:
    """A container or another host does not see this node's loopback; it is run all the same, as it may be meant."""
    name = command.rpartition("/")[2]
    assert refusal([command, "run", "image"]) == ""
    assert f"does not see this sidecar; have it start one there: {name} … forebay run" in elsewhere([command, "run", "image"])
    assert elsewhere(["python", name]) == ""
