"""forebay run: join or start, run the command untouched, say what it cost. Real processes; the sidecar is the fake one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.cli import FAKE_PROGRAM, environment, program
from support.fake_sidecar import FakeSidecar, tally_of
from support.sidecar import wait_until
from support.verbs import verb, verb_process

from forebay_proxy.cli.client import SidecarClient, SidecarUnreachable
from forebay_proxy.cli.run.join import Joined
from forebay_proxy.cli.run.run import Watch
from forebay_proxy.cli.run.takeover import takeover_folder
from forebay_proxy.node.runfile import RunDirectory, RunFile, process_start_time

pytestmark = pytest.mark.another_python

NAMES = ("FOREBAY_URL", "FOREBAY_JOB", "GOPEN_REWRITE", "NO_PROXY", "no_proxy")
FAKE = (*FAKE_PROGRAM, "--idle-exit-s", "30")
SHOW = f"import json, os; print(json.dumps({{name: os.environ.get(name) for name in {NAMES}}}))"


class Node:
    """A run directory of the test's own, and whatever sidecars come to live in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700)
        self.environ = environment(path)
        self.directory = RunDirectory(path)

    def forebay(self, *arguments: str, fake: tuple[str, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
        done = verb({**self.environ, **variables}, *arguments, directory=self.path, program=(*FAKE, *fake))
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def begin(self, *arguments: str, stdin: int = subprocess.DEVNULL, **variables: str) -> subprocess.Popen[bytes]:
        return verb_process({**self.environ, **variables}, *arguments, directory=self.path, stdin=stdin, program=FAKE)

    def sidecars(self) -> list[RunFile]:
        return self.directory.live()

    def end(self) -> None:
        for record in self.sidecars():
            if record.pid != os.getpid():
                os.kill(record.pid, signal.SIGTERM)
                wait_until_gone(record.pid, record.start_time)


def wait_until_gone(pid: int, start_time: int) -> None:
    """Ended, though nobody in this container collects orphans."""
    with suppress(OSError):
        while process_start_time(pid) == start_time and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "run")
    yield node
    node.end()


@pytest.mark.each_python
def test_a_sidecar_is_started_and_named_to_the_command(node: Node) -> None:
    """The command finds address, job, rewrite rules and proxy exceptions; stdout is its own alone."""
    done = node.forebay("run", "--", sys.executable, "-c", SHOW)
    assert done.returncode == 0
    seen = json.loads(done.stdout)
    (record,) = node.sidecars()
    assert seen["FOREBAY_URL"] == record.url
    assert seen["FOREBAY_JOB"]
    assert f"{record.url}/s3/" in seen["GOPEN_REWRITE"]
    assert "127.0.0.1,localhost" in seen["NO_PROXY"]
    assert seen["no_proxy"] == seen["NO_PROXY"]
    assert "started the sidecar" in done.stderr
    assert record.started_by == "run"


def test_two_that_begin_at_once_start_one(node: Node) -> None:
    """The lock lets one start it; all the others join."""
    processes = [node.begin("run", "--", sys.executable, "-c", SHOW) for _ in range(4)]
    outputs = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert len({json.loads(out)["FOREBAY_URL"] for out, _ in outputs}) == 1
    assert len({json.loads(out)["FOREBAY_JOB"] for out, _ in outputs}) == 4
    assert sorted(b"started" in err for _, err in outputs) == [False, False, False, True]


def test_tasks_of_one_srun_share_sidecar_and_job(node: Node) -> None:
    """srun --ntasks-per-node=3 forebay run: one starts it, the others join, and together they are one job."""
    meet = f"import glob, time; open({str(node.path)!r} + '/at-' + os.environ['SLURM_PROCID'], 'w').close()\n"
    meet += f"while len(glob.glob({str(node.path)!r} + '/at-*')) < 3: time.sleep(0.02)"
    task = ("run", "--", sys.executable, "-c", f"{SHOW}\n{meet}")
    processes = [node.begin(*task, SLURM_JOB_ID="7", SLURM_STEP_ID="1", SLURM_PROCID=str(number)) for number in range(3)]
    outputs = [process.communicate(timeout=240) for process in processes]
    assert {json.loads(out)["FOREBAY_JOB"] for out, _ in outputs} == {"7.1"}
    assert sorted(b"started" in err for _, err in outputs) == [False, False, True]


TAKEOVER = "import json, os; print(json.dumps([os.environ.get(name) for name in ('PYTHONPATH', 'FOREBAY_TAKEOVER_REPORT')]))"


@pytest.mark.each_python
def test_the_command_is_taken_over(node: Node) -> None:
    """Our folder is first on its PYTHONPATH, and what was there follows; the file it reports to is gone afterwards."""
    done = node.forebay("run", "--", sys.executable, "-c", TAKEOVER)
    path, report = json.loads(done.stdout)
    assert path == os.pathsep.join([str(takeover_folder()), node.environ["PYTHONPATH"]])
    assert Path(report).parent == node.path
    assert not Path(report).exists()


def test_takeover_can_be_turned_off(node: Node) -> None:
    """FOREBAY_TAKEOVER=0: the environment of ``forebay env`` and nothing else."""
    done = node.forebay("run", "--", sys.executable, "-c", TAKEOVER, FOREBAY_TAKEOVER="0")
    assert json.loads(done.stdout) == [node.environ["PYTHONPATH"], None]


def test_a_stale_run_file_is_replaced(node: Node) -> None:
    """After kill -9 of the sidecar the next run starts another."""
    node.forebay("run", "--", "true")
    (old,) = node.sidecars()
    os.kill(old.pid, signal.SIGKILL)
    wait_until_gone(old.pid, old.start_time)
    done = node.forebay("run", "--", "true")
    assert "started" in done.stderr
    assert [record.url for record in node.sidecars() if record.pid != old.pid] != [old.url]


@pytest.mark.parametrize(
    ("fake", "variables", "words"),
    [
        ((), {"FOREBAY_URL": "http://127.0.0.1:1"}, "FOREBAY_URL: no sidecar answers at http://127.0.0.1:1"),
        (("--fail", "cache directory /x cannot be written"), {}, "did not start: cache directory /x cannot be written"),
        ((), {"FOREBAY_URL": "nonsense"}, "must look like"),
    ],
)
def test_without_a_sidecar_the_command_runs_all_the_same(node: Node, fake: tuple[str, ...], variables: dict[str, str], words: str) -> None:
    """One line on stderr; the environment is what it was; the exit code is the command's."""
    done = node.forebay("run", "--", sys.executable, "-c", f"{SHOW}; raise SystemExit(7)", fake=fake, **variables)
    assert done.returncode == 7
    assert json.loads(done.stdout) == {name: variables.get(name) for name in NAMES}
    assert words in done.stderr
    assert "running without Forebay" in done.stderr
    assert done.stderr.count("\n") == 1


def test_required_means_no_command_without_a_sidecar(node: Node) -> None:
    """--required: exit 2, nothing run."""
    done = node.forebay("run", "--required", "--", "sh", "-c", "echo ran", FOREBAY_URL="http://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--required" in done.stderr


@pytest.mark.parametrize(("flags", "variables"), [((), {"FOREBAY_CACHE_SIZE": "100XB"}), (("--cache-size", "200XB"), {})])
def test_wrong_settings_are_a_mistake_of_the_command_line(node: Node, flags: tuple[str, ...], variables: dict[str, str]) -> None:
    """As an unknown flag is: exit 2 and no command, whether a sidecar runs or not. A run without Forebay would cost more than this line."""
    done = node.forebay("run", *flags, "--", "echo", "ran", **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert "00XB" in done.stderr


def test_streams_pass_through(node: Node) -> None:
    """stdin, stdout and stderr are the command's; bytes are bytes."""
    data = bytes(range(256)) * 1000
    done = verb(node.environ, "run", "--quiet", "--", "sh", "-c", "cat; echo oops >&2; exit 3", said=data, program=FAKE)
    assert (done.returncode, done.stdout, done.stderr) == (3, data, b"oops\n")


def test_a_command_that_is_not_there_is_127(node: Node) -> None:
    """As shells say it."""
    done = node.forebay("run", "--", "no-such-command-here")
    assert done.returncode == 127
    assert done.stderr.endswith("forebay: no-such-command-here: command not found\n")  # and nothing of what was read, as nothing ran
    done = node.forebay("run", "--", "python train.py")
    assert done.stderr.endswith("python train.py: command not found; without the quotes: forebay run -- python train.py\n")


def test_a_command_that_cannot_be_executed_is_126(node: Node) -> None:
    """A file without the bit, and a directory."""
    (node.path / "data").write_text("x")
    for name in ("data", "."):
        done = node.forebay("run", "--", f"{node.path}/{name}")
        assert done.returncode == 126
        assert "cannot be run: Permission denied" in done.stderr


def test_run_srun_is_refused_with_the_right_line(node: Node) -> None:
    """It would put one sidecar beside srun and none on the nodes."""
    done = node.forebay("run", "--", "/usr/bin/srun", "--ntasks-per-node=8", "python", "train.py")
    assert done.returncode == 2
    assert "srun --ntasks-per-node=8 forebay run -- python train.py" in done.stderr
    assert node.sidecars() == []


def test_the_summary_is_a_difference(node: Node) -> None:
    """Only what the command's own job read while it ran, and what was fetched meanwhile."""
    with FakeSidecar() as fake:
        fake.status = {**fake.status, "jobs": {"other": tally_of(5, 10**9, 10**9)}}
        with node.begin("run", "--url", fake.url, "--", "sh", "-c", "echo $FOREBAY_JOB; read line", stdin=subprocess.PIPE) as process:
            assert process.stdout is not None
            job = process.stdout.readline().decode().strip()
            jobs = {**fake.status["jobs"], job: tally_of(6, 3 * 10**9, 10**9, 2.5, 1)}
            fake.status = {**fake.status, "jobs": jobs, "bytes": {"origin": 2 * 10**9}}
            _, stderr = process.communicate(b"\n")
    line = "3.0 GB read, 1.0 GB hit (33 %), 2.0 GB from origins, 1.0 GB saved; readers waited 2.5 s; 1 error"
    assert stderr.decode().splitlines()[-2] == f"forebay: {line}"


def test_a_sidecar_that_dies_meanwhile_is_started_again(node: Node) -> None:
    """On the same address and directory, for whoever joined it too; the command's exit code is untouched."""
    with node.begin("run", "--", "sh", "-c", "echo up; read line; exit 4", stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (first,) = node.sidecars()
        with node.begin("run", "--", "sh", "-c", "echo up; read line", stdin=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            os.kill(first.pid, signal.SIGKILL)
            (again,) = wait_until(lambda: [found for found in node.sidecars() if found.pid != first.pid])
            blocked = Path(f"/proc/{again.pid}/status").read_text().partition("SigBlk:")[2].split()[0]
            _, joined_stderr = other.communicate(b"\n")
        assert process.stderr is not None
        stderr = b""
        while b" is back after " not in stderr and (line := process.stderr.readline()):
            stderr += line
        process.communicate(b"\n")
    assert process.returncode == 4
    assert (again.url, again.cache_dir) == (first.url, first.cache_dir)
    assert int(blocked, 16) == 0, "it would be deaf to SIGTERM: run waits for signals by blocking them"
    assert "is gone (killed by signal 9); it is started again" in stderr.decode()
    assert f"the sidecar at {first.url} is back after" in stderr.decode()
    assert "did not start again" not in joined_stderr.decode()


def test_a_sidecar_that_cannot_be_started_again_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    """After five tries, and with what each of them said; the command goes on."""
    tries = []

    def again() -> Joined:
        tries.append(1)
        raise SidecarUnreachable("no room")

    with FakeSidecar() as fake:
        joined, hold = Joined(SidecarClient(fake.url), fake.url, "started"), SidecarClient(fake.url).hold()
    watch = Watch(joined, hold, again)
    for _ in range(20):
        watch.look()
    said = capsys.readouterr().err.splitlines()
    assert (len(tries), said.count("forebay: the sidecar did not start again: no room")) == (5, 5)
    assert said[-1] == (
        f"forebay: the sidecar at {fake.url} is gone; it was started 5 times in 10 min; the command goes on, reading its shards directly"
    )


def test_a_start_that_takes_long_holds_up_neither_signals_nor_the_commands_end(capsys: pytest.CaptureFixture[str]) -> None:
    """A look comes back at once, and the start is one however often is looked; what it gives is taken when it is there."""
    going, tries = threading.Event(), []

    def again() -> Joined:
        tries.append(1)
        going.wait(60)
        return Joined(SidecarClient(fake.url), fake.url, "started")

    with FakeSidecar() as fake:
        joined, hold = Joined(SidecarClient(fake.url), fake.url, "started"), SidecarClient(fake.url).hold()
    watch = Watch(joined, hold, again)
    began = time.monotonic()
    for _ in range(5):
        watch.look()
    assert (len(tries), time.monotonic() - began < 30) == (1, True)
    going.set()
    wait_until(lambda: watch.look() or "is back after" in capsys.readouterr().err)
    assert len(tries) == 1


def test_it_outlives_its_run(node: Node) -> None:
    """The sidecar is no child of the terminal: it stays for the next command. Its log, beside the run file, is private."""
    node.forebay("run", "--", "true")
    (record,) = node.sidecars()
    assert os.getsid(record.pid) == record.pid
    assert (node.path / "forebay.log").stat().st_mode & 0o777 == 0o600


def test_no_descriptor_of_the_caller_stays_open_in_it(node: Node) -> None:
    """A lock or pipe of the caller must not live as long as the sidecar."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    argv = [*program("--idle-exit-s", "30"), "run", "--quiet", "--", "true"]
    subprocess.run(argv, env=node.environ, pass_fds=[writer], check=True, timeout=240)
    os.close(writer)
    assert len(node.sidecars()) == 1
    assert os.read(reader, 1) == b""  # end of file: nobody else holds the other end
    os.close(reader)


def test_a_script_without_a_first_line_is_the_shells(node: Node, tmp_path: Path) -> None:
    """As it is where a person types its name."""
    script = tmp_path / "train"
    script.write_text("echo $1; exit 3\n")
    script.chmod(0o755)
    done = node.forebay("run", "--quiet", "--", str(script), "told")
    assert (done.returncode, done.stdout) == (3, "told\n")
