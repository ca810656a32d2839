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

chosen=  # the interpreter everything is built from

choose_python() {  # decide once, and say which
    [[ -z $chosen ]] || return 0
    chosen=$(require_python)
    chosen=$("$chosen" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))')  # not that of an environment, nor a shim
    say "with $("$chosen" --version), $chosen"
}

python_of_debian() {  # print the distribution's own interpreter, where it will do
    usable_python /usr/bin/python3 && echo /usr/bin/python3
}

python_of_minor() {  # 3.12: print an interpreter of that version, from PATH or among pyenv's
    local path versions=${PYENV_ROOT:-$(pyenv root 2>/dev/null)}
    while read -r path; do
        [[ -x $path ]] && usable_python "$path" && { "$path" -c 'import sys; print(sys.executable)'; return; }
    done < <(type -ap "python$1"; [[ -z $versions ]] || compgen -G "$versions/versions/$1.*/bin/python$1")
    return 1
}

minor_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

identity_of() { "$1" -c 'import sys; print(sys.version, sys.base_prefix)' 2>/dev/null; }  # the same in an environment made from it

pythons_beside() {  # print an interpreter a line: the distribution's own and each minor version once, without that of $chosen
    local minor python
    local -A done=(["$(minor_of "$chosen")"]=1)
    if python=$(python_of_debian); then
        [[ $(identity_of "$python") == "$(identity_of "$chosen")" ]] || echo "$python"
        done["$(minor_of "$python")"]=1
    else
        say "no Python of the distribution's own here that is 3.11 to 3.13 and can make virtual environments: nothing was tried with it"
    fi
    for minor in 3.11 3.12 3.13; do
        [[ -n ${done[$minor]:-} ]] || python_of_minor "$minor" || say "no Python $minor here: nothing was tried with it"
    done
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
fish fish the test that reads what 'forebay env' prints for it
chromium chromium the tests that look at the status page in a browser
git git the tests of scripts/release
ps procps the tests that read process tables
ffprobe ffmpeg the tests that compare the index of a clip with ffprobe's
gcc build-essential the tests on a disk that fails on command
mkfs.ext4 e2fsprogs the tests of the disk bound on ext4
mkfs.xfs xfsprogs the tests of the disk bound on XFS
munged munge the test of prolog and epilog in a real Slurm
slurmctld slurmctld the test of prolog and epilog in a real Slurm
slurmd slurmd the test of prolog and epilog in a real Slurm
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
    choose_python
    ensure_venv_of "$chosen" "$@"
}

ensure_venv_of() {  # PYTHON DIRECTORY PIP-ARGUMENTS...
    local python=$1 directory=$2 stamp started=$SECONDS
    shift 2
    stamp=$({ cat "$repo/pyproject.toml"; echo "$@"; "$python" --version; } | sha256sum | cut -d' ' -f1)
    [[ -x $directory/bin/python && $(cat "$directory/.forebay-stamp" 2>/dev/null) == "$stamp" ]] && return
    say "setting up ${directory#"$repo"/} with $("$python" --version) (once; a minute or two)"
    if [[ $(identity_of "$directory/bin/python") != "$(identity_of "$python")" ]] || ! "$directory/bin/python" -c 'import pip' 2>/dev/null; then
        "$python" -m venv --clear "$directory"  # never one interpreter's packages under another's name
    fi
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

ensure_demo() {  # set $environment to one that the demo runs in, and fetch what else it needs
    # The row it compares with is pipe:curl, as people write it.
    if ! command -v curl >/dev/null; then
        may_apt && say "installing curl, for the rows without Forebay" && apt_install curl
        command -v curl >/dev/null || die "needs curl for the rows without Forebay (Debian package curl)"
    fi
    # The test environment holds all the demo needs; without it a lighter one is made.
    environment=$venv
    if [[ ! -f $environment/.forebay-stamp ]]; then
        environment=$venv-demo
        say "the demo runs in an environment of its own, $environment: 1.5 GB where pip finds torch for CPUs alone, else 5 GB; a minute or two, once"
        ensure_venv "$environment" -e '.[loader]' "$torch_pin" --group demo
    fi
    ensure_photographs "$environment"
}

ensure_clients() {  # DIRECTORY: programs of others that read through Forebay, and of Forebay what runs inside them, without its dependencies
    local stamp
    ensure_venv "$1" --group clients
    stamp=$(cat "$1/.forebay-stamp")
    [[ $(cat "$1/.forebay-installed" 2>/dev/null) == "$stamp" ]] && return
    (cd "$repo" && "$1/bin/python" -m pip install -q --no-input --disable-pip-version-check --no-deps -e .)
    echo "$stamp" >"$1/.forebay-installed"
}

ensure_second_webdataset() {  # VENV BASE VERSION: an environment that is BASE with another webdataset in front
    [[ $(cat "$1/.forebay-stamp" 2>/dev/null) == "$3 $(cat "$2/.forebay-stamp")" ]] && return
    say "setting up ${1#"$repo"/}: the same with webdataset $3"
    "$2/bin/python" -m venv --clear "$1"
    "$1/bin/python" -m pip install -q --no-input --disable-pip-version-check --no-deps "webdataset==$3"
    put_in_front "$1" "$2"
    ln -sfn "$2/photographs" "$1/photographs"
    echo "$3 $(cat "$2/.forebay-stamp")" >"$1/.forebay-stamp"
}

put_in_front() {  # VENV BASE: what BASE has is found behind what VENV has
    # addsitedir, not a plain path line: BASE's own .pth files (our editable install) must work too
    "$1/bin/python" - "$("$2/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" <<'PY'
import pathlib, sys, sysconfig

pathlib.Path(sysconfig.get_path("purelib"), "base.pth").write_text(f"import site; site.addsitedir({sys.argv[1]!r})\n")
PY
}

ensure_frameworks() {  # VENV BASE PIP: an environment that is BASE with frameworks of others in front; PIP's pip knows groups
    [[ $(cat "$1/.forebay-stamp" 2>/dev/null) == "$(cat "$2/.forebay-stamp")" ]] && return
    say "setting up ${1#"$repo"/}: frameworks whose data code is read through Forebay"
    "$2/bin/python" -m venv --clear --without-pip "$1"
    (cd "$repo" && "$3/bin/python" -m pip --python "$1/bin/python" install -q --no-input --disable-pip-version-check --no-deps --group frameworks)
    put_in_front "$1" "$2"
    cp "$2/.forebay-stamp" "$1/.forebay-stamp"
}

ensure_ray() {  # VENV BASE PIP: an environment that is BASE with Ray in front; PIP's pip knows groups
    [[ $(cat "$1/.forebay-stamp" 2>/dev/null) == "$(cat "$2/.forebay-stamp")" ]] && return
    say "setting up ${1#"$repo"/}: Ray, for a cluster of two nodes"
    "$2/bin/python" -m venv --clear --without-pip "$1"
    (cd "$repo" && "$3/bin/python" -m pip --python "$1/bin/python" install -q --no-input --disable-pip-version-check --group ray)
    put_in_front "$1" "$2"
    cp "$2/.forebay-stamp" "$1/.forebay-stamp"
}

stages=()
failed=0
limit_s=${FOREBAY_STAGE_S:-3600}  # of a stage; what takes longer hangs
running=()
beginning=
beside=()       # ids of the stages that run beside the others
declare -A beside_of=()  # by id: name and output

# What bash runs in the background outlives an interrupt, so it is ended by us; timeout passes the signal on to all of its stage.
end_stages() {
    local process
    [[ -z $beginning ]] || running+=("$!")  # an interrupt may come before its id is noted
    for process in "${running[@]}"; do kill "$process" 2>/dev/null || true; done
    for process in "${beside[@]}"; do rm -f "${beside_of[$process.output]}" "${beside_of[$process.output]}.took"; done
}
trap end_stages EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

begin() {  # COMMAND...: in the background, with an end: TERM at its limit, KILL to whatever of it is left 30 s later; its id is in $begun
    beginning=1
    timeout --kill-after=30 "$limit_s" "$@" </dev/null &
    begun=$!
    running+=("$begun")
    beginning=
}

ended() {  # ID: wait for it, and return its status
    local status=0 process rest=()
    wait "$1" || status=$?
    for process in "${running[@]}"; do [[ $process == "$1" ]] || rest+=("$process"); done
    running=("${rest[@]}")
    return "$status"
}

passed() {  # NAME SECONDS STATUS: note how long a stage took and whether it passed
    local took=$2 how
    case $3 in
        0) how=ok ;;
        # a stage that did not end on TERM was killed, which is 137; one that was killed for another reason, memory say, is too
        124) how="CUT: it had not ended after $limit_s s (FOREBAY_STAGE_S changes that)" ;;
        137) ((took >= limit_s)) && how="CUT and killed: it had not ended after $limit_s s" || how="FAILED (137: it was killed)" ;;
        *) how="FAILED ($3)" ;;
    esac
    (($3 == 0)) || failed=1
    stages+=("$(printf '%-34s %5d s  %s' "$1" "$took" "$how")")
    [[ $how != CUT* ]] || say "$1: $how"
}

stage() {  # NAME COMMAND...: run it; the next stages run anyway
    local name=$1 started=$SECONDS status=0
    shift
    say "$name"
    begin "$@"
    ended "$begun" || status=$?
    passed "$name" $((SECONDS - started)) "$status"
}

stage_beside() {  # NAME COMMAND...: begin it; it runs beside the stages that follow, until await_beside
    local output
    output=$(mktemp)
    say "$1 (beside the others; its output comes when all have ended)"
    begin_beside "$output" "$@" >"$output" 2>&1
}

stage_foremost() {  # NAME COMMAND...: the same, but what it prints is seen at once
    say "$1"
    begin_beside "$(mktemp)" "$@"
}

begin_beside() {  # OUTPUT NAME COMMAND...
    # it may end long before anybody waits for it, so it leaves its seconds behind
    begin bash -c 'status=0; "${@:2}" || status=$?; echo $SECONDS >"$1.took"; exit $status' - "$1" "${@:3}"
    beside+=("$begun")
    beside_of[$begun.name]=$2 beside_of[$begun.output]=$1
}

await_beside() {  # wait for all of them, and print what each said
    local process status output
    for process in "${beside[@]}"; do
        status=0 output=${beside_of[$process.output]}
        ended "$process" || status=$?
        say "${beside_of[$process.name]}"
        cat "$output"
        passed "${beside_of[$process.name]}" "$(cat "$output.took" 2>/dev/null || echo "$limit_s")" "$status"  # none: it was cut
        rm -f "$output" "$output.took"
    done
    beside=()
}

report_stages() {
    say "-- stages"
    printf '  %s\n' "${stages[@]}" >&2
    return $failed
}
