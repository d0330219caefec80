#!/bin/sh
# usage: scripts/venv.sh DIRECTORY
#
# Makes a virtual environment with fp8gemm (editable), its tests and its checkers, and writes the path of the Python
# that the make targets shall use to DIRECTORY/python.path.
#
# A Python whose torch was built for CUDA keeps that torch: the environment sees it and installs only what is missing.
# If nothing can be installed there, that Python itself is used, provided that it has all the modules that are needed.
#
# Elsewhere the versions are those of constraints.txt; with TORCH_RELEASE=2.6.0, or TORCH_RELEASE=newest, torch is that one
# instead, with the NVRTC and bindings that go with it.
set -eu

venv=$1
root=$(cd "$(dirname "$0")/.." && pwd)
modules="torch cuda.bindings filelock tqdm pytest hypothesis numpy"

say() { echo "venv.sh: $*" >&2; }

# A command may exist and still not run (a version manager's shim), so each candidate is asked.
find_python() {
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.10 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    say "needs Python >= 3.10, found $(python3 --version 2>&1 || true); name one with: make PYTHON=/path/to/python3"
    return 1
}

# The version of this Python's torch if that was built for CUDA, else nothing.
cuda_torch() {
    "$1" -c 'import torch; print(torch.__version__ if torch.version.cuda else "")' 2>/dev/null || true
}

missing_modules() {
    for module in $modules; do
        "$1" -c "import $module" 2>/dev/null || echo "$module"
    done
}

# Where somebody watches, pip shows what it fetches.
if [ -t 1 ]; then quiet=; else quiet=-qq; fi

install() {
    "$venv/bin/python" -m pip install $quiet --disable-pip-version-check "$@" -e "$root[test,dev]"
}

# Beside the NVRTC that is used, the oldest and another for tests of machine code; never imported, so each lies in a
# directory of its own.
other_compiler() {
    "$venv/bin/python" -m pip install $quiet --disable-pip-version-check --no-deps --target "$venv/nvrtc-$1" "$2" ||
        say "no NVRTC $1 can be had here: tests of machine code go without it"
}

other_compilers() {
    say "fetching two more NVRTCs beside it, for tests of machine code"
    other_compiler 12.4 nvidia-cuda-nvrtc-cu12==12.4.127
    other_compiler 13.0 nvidia-cuda-nvrtc==13.0.88
}

own_environment() {
    "$python" -m venv "$venv" || return 1
    case ${TORCH_RELEASE:-} in
        "") install -c "$root/constraints.txt" ;;
        newest) with_another_torch ;;
        *) with_another_torch "torch==$TORCH_RELEASE" ;;
    esac && other_compilers
}

with_another_torch() {
    grep -v -e '^torch==' -e '^cuda-' -e '^nvidia-cuda-nvrtc-cu12==' "$root/constraints.txt" >"$venv/constraints.txt"
    install -c "$venv/constraints.txt" "$@"
}

# Without the torch pin, which would pull in another torch than the machine's.
shared_environment() {
    "$python" -m venv --system-site-packages "$venv" || return 1
    # NOTE: if this Python lives in an environment itself, --system-site-packages shows only what lies below that one.
    "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
        >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/parent.pth"
    grep -v '^torch==' "$root/constraints.txt" >"$venv/constraints.txt"
    echo "torch==$torch" >>"$venv/constraints.txt"
    # Where there is no network it shall not take minutes to find out; pip hands these on to the pip that builds us.
    export PIP_RETRIES=1 PIP_TIMEOUT=15 PIP_DEFAULT_TIMEOUT=15
    install -c "$venv/constraints.txt"
}

python=$(find_python)
torch=$(cuda_torch "$python")
rm -rf "$venv"

if [ -z "$torch" ]; then
    say "building $venv with $python: torch and what tests and checks need, in a minute or two"
    own_environment
    chosen=$venv/bin/python
elif
    say "building $venv on $python and its torch $torch: what is missing there, in a minute or two"
    shared_environment 2>"$venv.log"
then
    rm -f "$venv.log"
    chosen=$venv/bin/python
else
    missing=$(missing_modules "$python")
    if [ -n "$missing" ]; then
        cat "$venv.log" >&2
        say "cannot install into $venv, and $python lacks" $missing
        exit 1
    fi
    rm -rf "$venv" "$venv.log"
    say "nothing can be installed here: using $python as it is ('make clean' to try again)"
    chosen=$python
fi

if [ "$chosen" = "$venv/bin/python" ]; then say "$venv is ready; its command is $venv/bin/fp8gemm"; fi
mkdir -p "$venv"
echo "$chosen" >"$venv/python.path"
