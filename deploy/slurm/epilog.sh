#!/bin/bash
# Ends the job's sidecar, and removes the job's folders with its cache. prolog.sh says how to install it. The job's processes are gone by
# now, so nothing is read any more and the end takes a second; `forebay stop` waits 40 s at most. It always exits 0: an epilog that fails
# drains the node.
#
# Run so far: as prolog.sh.
. "$(dirname "$(readlink -f "$0")")/places.sh"

kill_it() {  # as the job's user, who wrote the file that names the process
    say "the sidecar did not end in good order: killing it"
    "${as_user[@]}" bash -c 'kill -KILL "$(sed -n "s/.*\"pid\": *\([0-9]*\).*/\1/p" "$1")"' - "$run/ready.json"
}

finish() {
    known_job || return
    [[ -d $run ]] || return 0  # no prolog ran here
    if [[ -e $run/forebay.json ]]; then  # else it has ended by itself, or never began
        "${as_user[@]}" "$program" stop --all >&2 || kill_it
    fi
    rm -rf --one-file-system -- "$run" "$place"
}

finish || say "something is left in $runs or $scratch"
exit 0
