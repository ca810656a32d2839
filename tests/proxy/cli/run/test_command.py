"""Running a command as if Forebay were not there: signals and exit codes, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.cli import environment

from forebay_proxy.cli.run.command import refusal

pytestmark = pytest.mark.another_python

# Says "ready" when its handlers stand, then tells what it receives until its input ends. It waits by select on what wakes it: a signal that
# comes just before a plain read begins would be told when that read returns, which may be never.
TELLER = """
import os, select, signal, socket, sys
signals, woken = socket.socketpair()
woken.setblocking(False)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
    signal.signal(number, lambda *_: None)
signal.set_wakeup_fd(woken.fileno())
print("ready", flush=True)
while True:
    ready, _, _ = select.select([signals, 0], [], [])
    if signals in ready:
        for number in signals.recv(64):
            os.write(1, (signal.Signals(number).name + "\\n").encode())
    elif not os.read(0, 64):
        break
"""
RUNNER = (
    "import sys, os; from forebay_proxy.cli.run.command import run_command; sys.exit(run_command(sys.argv[1:], os.environ, lambda: None))"
)


@contextmanager
def start(tmp_path: Path, *command: str, **popen: Any) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-c", RUNNER, *command]
    with subprocess.Popen(
        arguments, env=environment(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **popen
    ) as process:
        yield process


def read(process: subprocess.Popen[str]) -> str:
    """The next line of the command's."""
    assert process.stdout is not None
    return process.stdout.readline().removesuffix("\n")


@contextmanager
def teller(tmp_path: Path, **popen: Any) -> Iterator[subprocess.Popen[str]]:
    with start(tmp_path, sys.executable, "-c", TELLER, **popen) as process:
        assert read(process) == "ready"
        yield process
        rest, _ = process.communicate("")
    assert (rest, process.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("kill -USR1 $$", 138)],
)
def test_the_exit_code_is_the_commands(tmp_path: Path, script: str, code: int) -> None:
    """Its own, or 128 + n for the signal that ended it."""
    with start(tmp_path, "sh", "-c", script) as process:
        process.communicate()
    assert process.returncode == code


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"])
def test_signals_are_passed_on_once(tmp_path: Path, name: str) -> None:
    """The command hears each signal that run receives, and run goes on waiting for it."""
    with teller(tmp_path) as process:
        process.send_signal(signal.Signals[name])
        assert read(process) == name


@pytest.mark.each_python
def test_a_signal_to_the_group_arrives_once(tmp_path: Path) -> None:
    """From ``timeout``, ``kill -- -PGID`` or Slurm the command has it already; one to run alone, in between, is passed on."""
    with teller(tmp_path, start_new_session=True) as process:
        for name in ("SIGTERM", "SIGUSR1", "SIGINT", "SIGUSR1"):
            os.killpg(process.pid, signal.Signals[name])
            assert read(process) == name
            process.send_signal(signal.SIGUSR2)
            assert read(process) == "SIGUSR2"


def test_a_signal_to_all_processes_of_its_command_line_is_passed_on(tmp_path: Path) -> None:
    """``pkill -f 'forebay run'``, ``killall forebay``: the command has not got it, and no copy of run lets it seem so."""
    with teller(tmp_path) as process:
        ours = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes() == ours:
                    os.kill(int(pid), signal.SIGUSR1)
        assert read(process) == "SIGUSR1"


def test_a_signal_that_only_the_witness_got_swallows_none(tmp_path: Path) -> None:
    """``pkill python`` reaches it and not run; nor do two of the group that reach run as one."""
    with teller(tmp_path) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        witness = next(pid for pid in children if TELLER.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(int(witness), signal.SIGUSR1)
        time.sleep(2.5)  # two ticks
        process.send_signal(signal.SIGUSR1)
        assert read(process) == "SIGUSR1"


@pytest.mark.each_python
def test_ctrl_c_arrives_once(tmp_path: Path) -> None:
    """From a terminal both get SIGINT by the kernel; it is not sent a second time."""
    master, slave = os.openpty()
    script = (
        "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    arguments = [sys.executable, "-c", script, "-c", RUNNER, sys.executable, "-c", TELLER]
    with subprocess.Popen(arguments, env=environment(tmp_path), stdin=slave, stdout=subprocess.PIPE, text=True) as process:
        os.close(slave)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.write(master, b"\x03")
        assert process.stdout.readline() == "SIGINT\n"
        os.write(master, b"\x04")  # end of input: the command ends
        assert process.stdout.read() == ""
        assert process.wait() == 0
    os.close(master)


def test_what_was_ignored_stays_ignored(tmp_path: Path) -> None:
    """nohup's SIGHUP reaches neither run nor its command."""
    script = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, flush=True); input()"
    with start(tmp_path, sys.executable, "-c", script, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as process:
        assert read(process) == "True"
        process.send_signal(signal.SIGHUP)
        process.communicate("\n")
    assert process.returncode == 0


def test_the_command_starts_with_an_open_signal_mask(tmp_path: Path) -> None:
    """What run blocks to wait for signals is not inherited."""
    script = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    with start(tmp_path, sys.executable, "-c", script) as process:
        out, _ = process.communicate()
    assert out == "set() True\n"


def test_a_child_of_run_that_ends_is_not_the_command(tmp_path: Path) -> None:
    """The sidecar may die during the run; only the command's end counts."""
    runner = f"import subprocess; other = subprocess.Popen(['sh', '-c', 'sleep 0.1']); {RUNNER}"
    with subprocess.Popen([sys.executable, "-c", runner, "sh", "-c", "sleep 0.4; exit 5"], env=environment(tmp_path)) as process:
        process.wait()
    assert process.returncode == 5


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of processes is root's to make")
def test_as_pid_1_it_reaps_who_is_left_behind(tmp_path: Path) -> None:
    """In a container it is the init: what daemons of the command leave behind does not stay as zombies."""
    orphans = "for i in 1 2 3 4 5; do (true &) ; done"
    seen = "for i in $(seq 100); do ps -eo stat= | grep -q Z || exit 7; sleep 0.1; done; exit 1"
    alone = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", RUNNER, "sh", "-c", f"{orphans}; {seen}"]
    assert subprocess.run(alone, env=environment(tmp_path), check=False).returncode == 7


# Which commands belong in front of ``forebay run``


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["mpirun", "-n", "8", "python", "train.py"], "write: mpirun … forebay run -- python train.py"),
        (["/opt/ompi/bin/mpiexec", "-n", "8", "python"], "write: mpiexec … forebay run -- python train.py"),
        (["orterun", "python"], "write: orterun … forebay run"),
        (["jsrun", "python"], "write: jsrun … forebay run"),
        *(([queue, "job.sh"], "in the job's script: srun --ntasks-per-node=N forebay run") for queue in ("sbatch", "salloc", "qsub")),
        (["/usr/bin/srun", "-N", "2", "--ntasks-per-node=4", "python"], "srun --ntasks-per-node=4 forebay run -- python train.py"),
    ],
)
def test_launchers_of_several_nodes_are_refused(command: list[str], said: str) -> None:
    """What they start runs elsewhere or later, and needs a forebay run of its own; the line can be typed as it stands."""
    assert said in refusal(command)


@pytest.mark.parametrize("command", ["python", "torchrun", "accelerate", "/home/me/srun.py", "sh"])
def test_what_runs_here(command: str) -> None:
    """Launchers of one node, and anything else, are run."""
    assert refusal([command, "srun"]) == ""
