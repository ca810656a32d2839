"""Which Slurm step is one training run. Pure."""

from __future__ import annotations

from typing import Mapping

__all__ = ["run_step", "step"]

_SPECIAL = 0xFFFFFFF0  # from here on: the batch script, the shell of an `salloc`, and others that are no step of an srun


def step(environ: Mapping[str, str]) -> str:
    """``job.step`` inside a step of an ``srun``, ``job`` elsewhere in an allocation, "" outside of Slurm."""
    job, number = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    return f"{job}.{number}" if job and number.isdigit() and int(number) < _SPECIAL else job


def run_step(environ: Mapping[str, str]) -> str:
    """``job.step`` where the tasks of a step are one run, or one after the other (``step_runs`` tells them apart), else "".

    A step of one task is none: it may be the shell of ``srun --pty``, in which one run is started after the other.
    """
    found = step(environ)
    return "" if environ.get("SLURM_STEP_NUM_TASKS") == "1" or "." not in found else found
