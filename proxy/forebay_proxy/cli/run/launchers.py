"""Commands that start others on many nodes: ``forebay run`` belongs behind them, not in front. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

__all__ = ["elsewhere", "refusal"]

_MPI = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prun", "jsrun", "aprun", "ibrun")
_QUEUES = ("sbatch", "salloc", "qsub", "bsub")
_APART = ("docker", "podman", "nerdctl", "kubectl", "ssh")


def refusal(command: Sequence[str]) -> str:
    """One line with what to write instead; "" for a command that runs on this node."""
    name = PurePath(command[0]).name
    would = f"'forebay run -- {name}' would start a sidecar here and none on the nodes; "
    if name == "srun":
        tasks = next((word for word in command[1:] if word.startswith("--ntasks-per-node=")), "--ntasks-per-node=N")
        return f"{would}write: srun {tasks} forebay run -- python train.py"
    if name in _MPI:
        return f"{would}write: {name} … forebay run -- python train.py"
    if name in _QUEUES:
        return f"{would}write in the job's script: srun --ntasks-per-node=N forebay run -- python train.py"
    return ""


def elsewhere(command: Sequence[str]) -> str:
    """What to say of a command whose programs run where this sidecar is not seen; "" for others. It may be meant, so it is run."""
    name = PurePath(command[0]).name
    if name not in _APART:
        return ""
    return f"what '{name}' starts does not see this sidecar; have it start one there: {name} … forebay run -- python train.py"
