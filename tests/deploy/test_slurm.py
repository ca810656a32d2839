"""Prolog, task prolog and epilog under a made-up Slurm environment with a real sidecar; all of it and the batch script in a real Slurm."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.deployed import DEPLOY
from support.netns import lonely_network
from support.sidecar import environment, forebay, wait_until
from support.verbs import FOREBAY

from forebay_proxy.wire.protocol.runfile import process_start_time

SLURM = DEPLOY / "slurm"
SCRIPTS = sorted(SLURM.iterdir())
ADDRESS = "10.20.30.40"
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="Slurm runs prolog and epilog as root, and they become the job's user")


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The scripts as a cluster has them: in one folder, with places of its own."""
    for script in SCRIPTS:
        shutil.copy(script, tmp_path)
    own = f'PYTHONPATH={os.pathsep.join(path for path in sys.path if path)!r} exec {" ".join(FOREBAY)} "$@"'
    written = {"program": program(tmp_path / "forebay", own), "runs": tmp_path / "runs", "scratch": tmp_path / "scratch", "size": "50MB"}
    text = (SLURM / "places.sh").read_text("utf-8")
    for name, value in written.items():
        text, count = re.subn(rf"^{name}=\S+", f"{name}={value}", text, flags=re.MULTILINE)
        assert count == 1
    (tmp_path / "places.sh").write_text(text)
    return tmp_path


def slurm(script: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """As slurmd runs it: without a search path."""
    job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_UID": str(os.getuid()), **variables}
    return subprocess.run([script], env=job, cwd="/", capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.needs("bash")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_bash_can_read_it(script: Path) -> None:
    """Each script is whole, and those that Slurm runs may be run."""
    assert subprocess.run(["bash", "-n", script], capture_output=True, check=True).stderr == b""
    assert bool(script.stat().st_mode & 0o100) == script.name.endswith("log.sh")


@needs_root
@pytest.mark.needs("bash", "setpriv", "setsid")
def test_a_job_has_a_sidecar_from_prolog_to_epilog(node: Path) -> None:
    """Ready when the prolog ends and in a session of its own; tasks learn its address; the epilog ends it and leaves nothing."""
    done = slurm(node / "prolog.sh")
    run, place = node / "runs/4711", node / "scratch/4711"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    ready = json.loads((run / "ready.json").read_text())
    assert os.getsid(ready["pid"]) == ready["pid"]
    assert Path(ready["cache_dir"]) == place / f"forebay-{os.getuid()}"
    assert [folder.stat().st_mode & 0o777 for folder in (run, place)] == [0o700, 0o700]
    told = slurm(node / "task_prolog.sh").stdout.splitlines()
    assert told == [f"export FOREBAY_URL={ready['url']}", f"export SLURM_TMPDIR={place}"]
    assert slurm(node / "task_prolog.sh", SLURM_TMPDIR="/elsewhere").stdout.splitlines() == told[:1]
    assert slurm(node / "task_prolog.sh", SLURM_JOB_ID="4712").stdout == ""
    done = slurm(node / "epilog.sh")
    assert done.returncode == 0
    assert f"the sidecar at {ready['url']} (pid {ready['pid']}) has ended" in done.stderr
    assert process_start_time(ready["pid"]) is None
    assert [*(node / "runs").iterdir(), *(node / "scratch").iterdir()] == []
    assert slurm(node / "epilog.sh").returncode == 0


@needs_root
@pytest.mark.needs("bash", "setpriv", "setsid")
def test_a_sidecar_that_cannot_be_stopped_is_killed(node: Path) -> None:
    """None outlives its job: the next job of that node has its disk."""
    slurm(node / "prolog.sh")
    pid = json.loads((node / "runs/4711/ready.json").read_text())["pid"]
    program(node / "forebay", "exit 3")
    done = slurm(node / "epilog.sh")
    assert (done.returncode, done.stderr) == (0, "forebay: job 4711: the sidecar did not end in good order: killing it\n")
    wait_until(lambda: process_start_time(pid) is None)
    assert [*(node / "runs").iterdir(), *(node / "scratch").iterdir()] == []


@needs_root
@pytest.mark.needs("bash", "setpriv", "setsid")
@pytest.mark.parametrize("broken", [{"SLURM_JOB_ID": "4711; rm"}, {"SLURM_JOB_UID": ""}, {}], ids=["job", "user", "program"])
def test_trouble_drains_no_node(node: Path, broken: Mapping[str, str]) -> None:
    """Both scripts exit 0 whatever happens, and say what did; a job without a sidecar reads from its origin."""
    program(node / "forebay", "echo no such disk >&2; exit 2")
    done = slurm(node / "prolog.sh", **broken)
    assert done.returncode == 0
    assert "no sidecar" in done.stderr
    if not broken:
        assert (node / "runs/4711/forebay.log").read_text() == "no such disk\n"
    assert slurm(node / "task_prolog.sh", **broken).stdout.count("FOREBAY_URL") == 0
    assert slurm(node / "epilog.sh", **broken).returncode == 0
    assert not (node / "runs/4711").exists()


def batch_programs(node: Path) -> dict[str, str]:
    """What the batch script calls, first on PATH; the training writes where its sidecar is, and its own words."""
    (folder := node / "bin").mkdir()
    shutil.copy(node / "forebay", folder)
    program(folder / "torchrun", f'echo "$FOREBAY_URL $SLURM_TMPDIR $*" >{node}/training; mv {node}/training {node}/trained')
    return environment(node, PATH=f"{folder}:{os.environ['PATH']}")


@pytest.mark.needs("bash")
def test_the_batch_script_trains_through_a_sidecar_of_its_own(node: Path) -> None:
    """With the job's folder as its cache, where no prolog has started one; without that folder it says what to do."""
    environ = batch_programs(node) | {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2"}
    program(node / "bin/scontrol", "printf '%s\\n' node1 node2")
    program(node / "bin/srun", 'exec "$@"')
    (job := node / "job").mkdir()
    command = ["bash", str(node / "train.sbatch")]
    refused = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode != 0
    assert "this cluster sets none" in refused.stderr
    done = subprocess.run(command, env={**environ, "SLURM_TMPDIR": str(job)}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    url, _, words = (node / "trained").read_text().split(" ", 2)
    assert url.startswith("http://127.0.0.1:"), done.stderr
    assert words == "--nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node1:29500 train.py\n"
    assert [folder.name for folder in job.iterdir()] == [f"forebay-{os.getuid()}"]
    assert forebay(node, "stop").returncode == 0


CONF = """
ClusterName=one
SlurmctldHost={host}({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={node}/munge.sock
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
StateSaveLocation={node}/state
SlurmdSpoolDir={node}/spool
SlurmctldPidFile={node}/slurmctld.pid
SlurmdPidFile={node}/slurmd.pid
PrologFlags=Alloc
Prolog={node}/prolog.sh
TaskProlog={node}/task_prolog.sh
Epilog={node}/epilog.sh
NodeName={host} NodeAddr={address} CPUs=1
PartitionName=all Nodes={host} Default=YES
"""


@contextmanager
def slurm_of_one_node(node: Path) -> Iterator[dict[str, str]]:
    """A controller and a node of this machine in a network of their own; what is in the environment of who uses it."""
    host = socket.gethostname().partition(".")[0]
    for folder in ("state", "spool"):
        (node / folder).mkdir()
    (node / "slurm.conf").write_text(CONF.format(host=host, address=ADDRESS, node=node))
    (node / "munge.key").write_bytes(os.urandom(128))
    (node / "munge.key").chmod(0o400)
    munge = [f"--{name}-file={node}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    environ = {**os.environ, "SLURM_CONF": f"{node}/slurm.conf"}
    commands = (
        ["munged", "--foreground", "--force", f"--socket={node}/munge.sock", *munge],
        ["slurmctld", "-D"],
        ["slurmd", "-D"],
    )
    with lonely_network(ADDRESS, hosts={host: ADDRESS}), ExitStack() as stack, (node / "slurm.log").open("wb") as log:
        for command in commands:
            process = stack.enter_context(subprocess.Popen(command, env=environ, stdout=log, stderr=log))
            stack.callback(process.terminate)
            if command[0] == "munged":
                wait_until((node / "munge.sock").exists)
        yield environ


def told(environ: Mapping[str, str], *command: str) -> str:
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip()


@needs_root
@pytest.mark.needs("munged", "slurmctld", "slurmd", "sbatch", "ip")
def test_a_real_slurm_gives_each_job_its_sidecar(node: Path) -> None:
    """One that ends and one that is cancelled: the batch script finds the prolog's sidecar; nothing is left, and the node serves on."""
    text = (node / "train.sbatch").read_text("utf-8")
    text, count = re.subn(r"#SBATCH --(nodes|gpus-per-node|tmp)=.*\n", "", text)
    assert count == 3
    (node / "one.sbatch").write_text(text)
    programs = batch_programs(node)
    runs = node / "runs"
    with slurm_of_one_node(node) as environ:
        wait_until(lambda: told(environ, "sinfo", "-h", "-o", "%t") == "idle")
        sbatch = ("sbatch", "--parsable", f"--output={node}/out")
        job = told({**environ, "PATH": programs["PATH"]}, *sbatch, str(node / "one.sbatch"))
        wait_until((node / "trained").exists)
        assert (node / "trained").read_text().split()[1] == f"{node}/scratch/{job}"
        wait_until(lambda: not [*runs.iterdir()])
        assert "using the sidecar at http://127.0.0.1:" in (node / "out").read_text()
        job = told(environ, *sbatch, "--wrap=sleep 600")
        [pid] = wait_until(lambda: [json.loads(file.read_text())["pid"] for file in runs.glob(f"{job}/forebay.json")])
        wait_until(lambda: told(environ, "squeue", "-h", "-o", "%t") == "R")
        told(environ, "scancel", job)
        wait_until(lambda: not [*runs.iterdir()])
        assert process_start_time(pid) is None
        wait_until(lambda: told(environ, "sinfo", "-h", "-o", "%t") == "idle")
        assert [*(node / "scratch").iterdir()] == []
