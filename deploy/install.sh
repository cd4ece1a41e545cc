#!/bin/sh
# Installs DECOR with what a node needs into an environment of its own: exact versions, small, and tried out.
# deploy/Containerfile calls this; it works without a container too.
#
#   deploy/install.sh TARGET [SOURCE]
#
# TARGET        folder of the environment; it must not exist. It cannot be moved afterwards
# SOURCE        checkout or wheel of DECOR (default: the checkout of this script)
#
# Environment:
# PYTHON        interpreter to use, with pip (default: python3)
# TORCH_INDEX   package index that has torch for CPUs, for torch alone (default: PyTorch's own); empty: pip's
# LIBRARIES     folder of libraries to use instead of installing requirements.txt, such as another
#               environment's site-packages; it is not changed. For tests
set -eu

[ $# -ge 1 ] || { echo "usage: deploy/install.sh TARGET [SOURCE]" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
target=$1 source=${2:-$(dirname "$here")} python=${PYTHON:-python3}
torch_index=${TORCH_INDEX-https://download.pytorch.org/whl/cpu}
[ ! -e "$target" ] || { echo "install.sh: $target exists; remove it, or name another folder" >&2; exit 2; }

# pip stays outside: a node does not need it
"$python" -m venv --without-pip "$target"
target=$(cd "$target" && pwd)
site=$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
pip() {
    # without dependencies: what is installed is what requirements.txt lists
    "$python" -m pip --python "$target/bin/python" --disable-pip-version-check --no-cache-dir \
        install --quiet --no-compile --no-deps --no-warn-script-location --root-user-action ignore "$@"
}

trim() {
    rm -rf "$site/torch/include" "$site/torch/share" "$site/torch/test"
    # torch does not start without this one
    find "$site/torch/bin" -mindepth 1 -maxdepth 1 ! -name torch_shm_manager -exec rm -rf {} +
    find "$site" -type d \( -name tests -o -name __pycache__ \) -prune -exec rm -rf {} +
    # the largest libraries, without the names of their internal functions: 120 MB
    if command -v strip > /dev/null; then
        find "$site/torch/lib" "$site/llvmlite/binding" -name '*.so' -exec strip --strip-unneeded {} +
    else
        echo "install.sh: no strip (Debian: binutils) here, so the result is 120 MB larger" >&2
    fi
}

if [ -n "${LIBRARIES:-}" ]; then
    echo "$LIBRARIES" > "$site/libraries.pth"
    pip --no-index --no-build-isolation "$source"
    export PYTHONDONTWRITEBYTECODE=1
else
    # torch for CPUs has the same name and version elsewhere, with 3 GB of CUDA
    pip ${torch_index:+--index-url "$torch_index"} "$(grep '^torch==' "$here/requirements.txt")"
    pip --requirement "$here/requirements.txt" "$source"
    trim
    unset PYTHONDONTWRITEBYTECODE
fi
# caches know a file by its time, and layers of an image keep whole seconds of it
find "$target" -exec touch --no-dereference --date=@315532800 {} +
# the first federation: what it loads and compiles is kept, as the root of a container is read-only
NUMBA_CACHE_DIR=$target/cache "$target/bin/python" "$here/trial.py"
"$target/bin/python" -m compileall -q "$site/decor"
