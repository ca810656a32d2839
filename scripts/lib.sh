# Shared by the scripts beside it: find a Python, make virtual environments once, install Debian packages, run stages.
# Nothing here names a package index or a machine: pip and apt use what the machine is configured with.

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${FOREBAY_VENV:-$repo/.venv}
torch_pin=$(sed -n 's/^torch = \["\(torch==[^"]*\)"\].*/\1/p' "$repo/pyproject.toml")

PATH=$PATH:/usr/sbin:/sbin  # where Debian keeps nginx, also for those who are not root

say() { printf 'forebay: %s\n' "$*" >&2; }
die() { say "$*"; exit 2; }

usable_python() {  # PATH: 3.11 to 3.13, and able to make virtual environments
    "$1" -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null
}

find_python() {  # print the first interpreter that will do; $PYTHON wins
    local name path
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        while read -r path; do
            usable_python "$path" && { echo "$path"; return; }
        done < <(type -ap "$name")
    done
    return 1
}

require_python() {  # print an interpreter, installing Debian's python3-venv when that is all that is missing
    find_python && return
    if may_apt; then
        say "no Python 3.11 to 3.13 that can make virtual environments: installing Debian's"
        apt_install python3 python3-venv >&2 && find_python && return
    fi
    die "needs Python 3.11, 3.12 or 3.13 with its venv module (on Debian: apt-get install python3-venv), or PYTHON=/path/to/python;" \
        "python3 here is: $(python3 --version 2>&1 || echo absent)"
}

may_apt() { [[ ${FOREBAY_APT:-1} != 0 && $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

apt_install() {  # PACKAGES: install without starting the daemons among them
    local policy=/usr/sbin/policy-rc.d status=0 created=
    # Debian starts nginx and prometheus on their default ports when they are installed; the tests start their own on free ports.
    if [[ ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" && created=1
    fi
    apt_quiet install -y --no-install-recommends "$@" || { apt_quiet update && apt_quiet install -y --no-install-recommends "$@"; } || status=$?
    [[ -z $created ]] || rm -f "$policy"
    return $status
}

apt_quiet() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 "$@" >/dev/null; }

# What the tests run against besides Python: command, Debian package, what is skipped without it.
debian_parts() {
    cat <<'PARTS'
nginx nginx the tests against nginx as an origin
radosgw radosgw the tests against the Ceph RADOS gateway as S3
ceph-mon ceph-mon the tests against the Ceph RADOS gateway as S3
ceph-osd ceph-osd the tests against the Ceph RADOS gateway as S3
prometheus prometheus the tests that scrape a sidecar with Prometheus
curl curl the tests that open shards with pipe:curl
ss iproute2 the tests that count connections
tinyproxy tinyproxy the tests behind an upstream proxy
ip iproute2 the tests in a network of their own
ps procps the tests that read process tables
gcc build-essential the tests on a disk that fails on command
mkfs.ext4 e2fsprogs the tests of the disk bound on ext4
mkfs.xfs xfsprogs the tests of the disk bound on XFS
PARTS
}

missing_parts() {
    local command rest
    while read -r command rest; do
        command -v "$command" >/dev/null || echo "$command $rest"
    done < <(debian_parts)
}

ensure_debian_parts() {  # install what is missing when root; else say which tests will be skipped
    local missing command package what
    missing=$(missing_parts)
    [[ -n $missing ]] || return 0
    if may_apt; then
        say "installing Debian packages for the tests: $(cut -d' ' -f2 <<<"$missing" | tr '\n' ' ')"
        # shellcheck disable=SC2046  # one word a package is meant
        apt_install $(cut -d' ' -f2 <<<"$missing") || say "apt-get could not install all of them"
    fi
    while read -r command package what; do
        say "no '$command' (Debian package $package; installed when run as root): skipping $what"
    done < <(missing_parts)
}

ensure_venv() {  # DIRECTORY PIP-ARGUMENTS...: made once, brought up to date when pyproject.toml, these arguments or the Python changed
    local directory=$1 python stamp started=$SECONDS
    shift
    python=$(require_python)
    stamp=$({ cat "$repo/pyproject.toml"; echo "$@"; "$python" --version; } | sha256sum | cut -d' ' -f1)
    [[ -x $directory/bin/python && $(cat "$directory/.forebay-stamp" 2>/dev/null) == "$stamp" ]] && return
    say "setting up ${directory#"$repo"/} with $("$python" --version) (once; a minute or two)"
    "$directory/bin/python" -c 'import pip' 2>/dev/null || "$python" -m venv --clear "$directory"
    rm -f "$directory/.forebay-stamp"
    # dependency groups need pip 25.1, newer than what Python 3.11 brings
    "$directory/bin/python" -m pip install -q --no-input --disable-pip-version-check --upgrade 'pip>=25.1'
    (cd "$repo" && "$directory/bin/python" -m pip install -q --no-input --disable-pip-version-check "$@")
    echo "$stamp" >"$directory/.forebay-stamp"
    say "  done in $((SECONDS - started)) s"
}

ensure_photographs() {  # VENV: two packages that carry photographs; beside the environment's packages, since only their pictures are wanted
    [[ -d $1/photographs ]] && return
    say "fetching the photographs (scikit-image and scikit-learn carry them)"
    "$1/bin/python" -m pip install -q --no-input --disable-pip-version-check --no-deps --target "$1/photographs.part" scikit-image scikit-learn
    find "$1/photographs.part" -type f ! -name '*.jpg' ! -name '*.txt' ! -path '*.dist-info/*' -delete
    mv "$1/photographs.part" "$1/photographs"
}

ensure_second_webdataset() {  # VENV BASE VERSION: an environment that is BASE with another webdataset in front
    [[ $(cat "$1/.forebay-stamp" 2>/dev/null) == "$3 $(cat "$2/.forebay-stamp")" ]] && return
    say "setting up ${1#"$repo"/}: the same with webdataset $3"
    "$2/bin/python" -m venv --clear "$1"
    "$1/bin/python" -m pip install -q --no-input --disable-pip-version-check --no-deps "webdataset==$3"
    # addsitedir, not a plain path line: BASE's own .pth files (our editable install) must work too
    "$1/bin/python" - "$("$2/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" <<'PY'
import pathlib, sys, sysconfig

pathlib.Path(sysconfig.get_path("purelib"), "base.pth").write_text(f"import site; site.addsitedir({sys.argv[1]!r})\n")
PY
    ln -sfn "$2/photographs" "$1/photographs"
    echo "$3 $(cat "$2/.forebay-stamp")" >"$1/.forebay-stamp"
}

stages=()
failed=0

passed() {  # NAME STARTED STATUS: note how long a stage took and whether it passed
    (($3 == 0)) || failed=1
    stages+=("$(printf '%-34s %5d s  %s' "$1" $((SECONDS - $2)) "$( (($3 == 0)) && echo ok || echo "FAILED ($3)")")")
}

stage() {  # NAME COMMAND...: run it; the next stages run anyway
    local name=$1 started=$SECONDS status=0
    shift
    say "$name"
    "$@" || status=$?
    passed "$name" "$started" "$status"
}

stage_beside() {  # NAME COMMAND...: begin it; it runs beside the stages that follow, until await_beside
    beside_name=$1 beside_started=$SECONDS beside_output=$(mktemp)
    shift
    say "$beside_name (beside the next ones; its output comes when it has ended)"
    "$@" >"$beside_output" 2>&1 </dev/null &
    beside=$!
    trap 'kill "$beside" 2>/dev/null; rm -f "$beside_output"' EXIT  # bash lets what runs in the background outlive an interrupt
}

await_beside() {  # print what it said
    local status=0
    wait "$beside" || status=$?
    trap - EXIT
    say "$beside_name"
    cat "$beside_output"
    rm -f "$beside_output"
    passed "$beside_name" "$beside_started" "$status"
}

report_stages() {
    say "-- stages"
    printf '  %s\n' "${stages[@]}" >&2
    return $failed
}
