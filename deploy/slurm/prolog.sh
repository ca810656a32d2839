#!/bin/bash
# Starts a sidecar for a job on each of its nodes, as the job's user. In slurm.conf, with the scripts in a folder that only root may write:
#
#   Prolog=/etc/slurm/forebay/prolog.sh
#   TaskProlog=/etc/slurm/forebay/task_prolog.sh
#   Epilog=/etc/slurm/forebay/epilog.sh
#   PrologFlags=Alloc          # on every node when the job begins, not at the first srun
#
# It always exits 0: a prolog that fails drains the node, and a job without a sidecar only reads more slowly. The sidecar's processor time
# and memory (150 MiB) are not the job's, because it begins before the job's cgroup; its disk is bounded by `size` in places.sh.
#
# Users need none of this: train.sbatch works on any cluster. What the prolog adds is that every job has a sidecar, unasked.
#
# Run so far: on one node of Slurm 22.05 (Debian 12): a job that ends and one that is cancelled, of a user who is not root; and under a made-up
# Slurm environment (tests/deploy/test_slurm.py). Not run: on several nodes.
. "$(dirname "$(readlink -f "$0")")/places.sh"

start() {
    known_job || return
    install -d -m 0755 "$runs" "$scratch" || return
    install -d -m 0700 -o "$SLURM_JOB_UID" -g "$group" "$run" "$place" || return
    # A session of its own, or Slurm would kill it with the prolog. The user's shell opens the files: root would follow a link laid there.
    "${as_user[@]}" setsid bash -c 'umask 077; exec "$1" serve --json </dev/null >"$2/ready.json" 2>"$2/forebay.log"' - "$program" "$run" &
    local sidecar=$!
    for _ in {1..50}; do  # 5 s: a start takes one, and Slurm's BatchStartTimeout is 10
        [[ -s $run/ready.json ]] && return
        kill -0 "$sidecar" 2>/dev/null || break
        sleep 0.1
    done
    say "no sidecar yet; $run/forebay.log says why"
}

start || say "no sidecar was started"
exit 0
