#!/bin/bash
# Slurm runs it before each task, as the job's user, and takes what it prints into the task's environment. prolog.sh says how to install it.
#
# Run so far: as prolog.sh.
. "$(dirname "$(readlink -f "$0")")/places.sh"

: "${SLURM_JOB_UID:=$(id -u)}"
known_job || exit 0
url=$(sed -n 's/.*"url": *"\(http[^"]*\)".*/\1/p' "$run/ready.json" 2>/dev/null)
[[ -z $url ]] || echo "export FOREBAY_URL=$url"
[[ -n ${SLURM_TMPDIR:-} || ! -d $place ]] || echo "export SLURM_TMPDIR=$place"
exit 0
