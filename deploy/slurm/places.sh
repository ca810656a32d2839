# Where things lie on a node: read by the scripts beside it. Edit this block.
program=/opt/forebay/bin/forebay   # in a folder that only root may write, as it runs as each job's user
runs=/run/forebay-jobs             # a folder a job: run file, sockets, log
scratch=/scratch/jobs              # a folder a job, on the node's local disk: the job's $SLURM_TMPDIR; the epilog removes it
size=200GB                         # of a job's cache; jobs that share a node share its disk

# Slurm gives prolog and epilog no search path.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin

say() { printf 'forebay: job %s: %s\n' "${SLURM_JOB_ID:-?}" "$*" >&2; }

known_job() {  # whether Slurm says which job and whose; sets run, place, group, and as_user: what stands before a command of the job's user
    [[ ${SLURM_JOB_ID:-} =~ ^[0-9]+$ && ${SLURM_JOB_UID:-} =~ ^[0-9]+$ ]] || { say "SLURM_JOB_ID or SLURM_JOB_UID is missing"; return 1; }
    run=$runs/$SLURM_JOB_ID place=$scratch/$SLURM_JOB_ID
    local home
    home=$(getent passwd "$SLURM_JOB_UID" | cut -d: -f6)
    group=$(id -g "$SLURM_JOB_UID") || return
    # With nothing of slurmd's environment. HOME has the user's keys for AWS and Hugging Face.
    as_user=(
        setpriv --reuid "$SLURM_JOB_UID" --regid "$group" --init-groups --inh-caps=-all
        env -i -C / PATH="$PATH" HOME="${home:-/}" LANG=C.UTF-8 SLURM_JOB_ID="$SLURM_JOB_ID" SLURM_TMPDIR="$place"
        XDG_RUNTIME_DIR="$run" FOREBAY_CACHE_SIZE="$size"
    )
}
