#!/bin/sh
# environment.sh DIR WHEELS: makes a Python environment in DIR with backfill and all that it needs, from
# the folder WHEELS alone, compiled to byte code. Two runs at one place give the same files.
set -eu
home=$1 wheels=$2
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INDEX=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
# Debugging information would name the folder in which pip compiled, which is another every time.
export CFLAGS="-O2 -g0" LDFLAGS="-s"
python3 -m venv "$home"
pip() { "$home/bin/python" -m pip --quiet "$@"; }
# Debian puts an older one there, which makes no wheels.
pip install --no-compile --upgrade --find-links "$wheels" setuptools
pip install --no-compile --no-build-isolation --find-links "$wheels" 'backfill[libvirt,openstack,web,condor]'
pip uninstall --yes pip
rm -f "$home"/bin/Activate.ps1 "$home"/bin/activate* "$home"/bin/pip*
find "$home" -name __pycache__ -type d -prune -exec rm -rf {} +
# Tests of parts are a quarter of all files, and each file takes its time to install.
find "$home/lib" -path '*/site-packages/*/tests' -type d -prune -exec rm -rf {} +
find "$home" -path '*.dist-info/RECORD' -exec sed -i '/^[^,]*\/tests\//d' {} +
# Where it was installed from, and when: different every time, and of no use.
find "$home" -name direct_url.json -exec rm -f {} +
find "$home" -path '*.dist-info/RECORD' -exec sed -i '/direct_url\.json/d; /__pycache__/d' {} +
# Compiled here, once, and not for a minute on each machine where it is installed. Byte code names its
# source's date, so all have one: that of SOURCE_DATE_EPOCH, which alone would make compileall read the
# source at each import instead. In one process and in order, because byte code depends on what came before.
find "$home" -name '*.py' -exec touch --date="@${SOURCE_DATE_EPOCH:?}" {} +
PYTHONHASHSEED=0 "$home/bin/python" -m compileall -q --invalidation-mode timestamp "$home/lib" ||
    echo "some parts are for other releases of Python: not compiled" >&2
