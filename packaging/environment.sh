#!/bin/sh
# environment.sh DIR WHEELS: makes a Python environment in DIR with backfill and all that it needs, from
# the folder WHEELS alone. Two runs at one place give the same files.
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
# Where it was installed from, and when: different every time, and of no use.
find "$home" -name direct_url.json -exec rm -f {} +
find "$home" -path '*.dist-info/RECORD' -exec sed -i '/direct_url\.json/d; /__pycache__/d' {} +
