#!/bin/sh
# Sets up everything that the demo, the lab and the tests need on a bare Debian 12; quick when done.
# Exit status 3 with one sentence on standard error: this machine cannot be set up (no root or apt).
# --python makes the Python environment alone: for checks, unit tests and the simulated demo.
# --docs installs besides what draws the diagrams of the documentation site, and no guest image.
# --browser installs a browser besides, in which the tests look at reports: nobody else needs it.
set -eu
cd "$(dirname "$0")/.."
cache=${BACKFILL_CACHE:-/var/cache/backfill}
packages="slurmctld slurmd slurm-client slurm-wlm-basic-plugins slurm-wlm-jwt-plugin munge
    libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients libvirt-dev
    qemu-system-x86 qemu-utils zstd mmdebstrap busybox-static cpio genisoimage iproute2 iptables util-linux e2fsprogs
    mariadb-server-core mariadb-client-core
    chrony nfs-ganesha nfs-ganesha-vfs prometheus
    gcc libc6-dev libmunge-dev pkg-config python3 python3-dev python3-venv ca-certificates"

cannot() { echo "setup: $1" >&2; exit 3; }
say() { echo "setup: $1" >&2; }

only_python= docs=
case ${1:-} in
    --browser) packages="$packages chromium fonts-dejavu-core" ;;
    --python) only_python=yes ;;
    --docs) docs=yes packages=graphviz ;;
esac
if [ -n "$only_python" ] && [ ! -w "$(dirname "$cache")" ] && [ ! -w "$cache" ]; then
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/backfill
fi
if [ -z "$only_python" ]; then
[ "$(id -u)" = 0 ] || cannot "root is missing: run this as root, or watch the simulated demo."
command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
    cannot "apt is missing: the real demo needs Debian, the simulated one does not."
fi
mkdir -p "$cache"
exec 9>"$cache/setup.lock"
flock 9

# --- system packages; nothing they bring is started or left enabled -------------------------------
missing=
for package in $packages; do
    case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) in
        installed) ;;
        *) missing="$missing $package" ;;
    esac
done
if [ -n "$missing" ] && [ -z "$only_python" ]; then
    say "installing$missing"
    policy=/usr/sbin/policy-rc.d
    # One with our mark was left by a run that was killed.
    if [ ! -e $policy ] || grep -q "backfill setup" $policy; then
        printf '#!/bin/sh\n# backfill setup\nexit 101\n' >$policy
        chmod 755 $policy
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        trap 'exit 130' INT TERM HUP
    fi
    enabled() { find /etc/systemd/system -path '*.wants/*' -type l 2>/dev/null | sort; }
    before=$(enabled)
    log=$cache/apt.log
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y \
        --no-install-recommends $missing; } >"$log" 2>&1 ||
        { tail -n 5 "$log" >&2; cannot "apt could not install the packages; see $log."; }
    for link in $(enabled); do
        case " $(echo $before) " in
            *" $link "*) ;;
            *) rm -f "$link" ;;
        esac
    done
fi

# --- Python environment from the lock file ---------------------------------------------------------
stamp=.venv/.backfill-lock
# libvirt's bindings are compiled against its headers; without those everything else still works.
lock=requirements.lock
if ! pkg-config --exists libvirt 2>/dev/null || ! command -v gcc >/dev/null; then
    [ -n "$only_python$docs" ] || cannot "libvirt's headers or gcc are missing although they were installed."
    lock=$cache/requirements.without-libvirt
    awk '/^[a-z]/ {skip = /^libvirt-python==/} !skip' requirements.lock >"$lock"
fi
wanted=$(cat "$lock" pyproject.toml | sha256sum)
if [ ! -x .venv/bin/python ] || [ "$(cat $stamp 2>/dev/null || true)" != "$wanted" ]; then
    # Debian's own is optimised; those that version managers compile are not, and tests take a tenth to a fifth longer.
    python=/usr/bin/python3.11
    "$python" -c 'import ensurepip, os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
        python=$(command -v python3.11 || command -v python3)
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        cannot "Python 3.11 or newer is missing: $python is older."
    uv=$(command -v uv || true)
    if [ -z "$uv" ]; then
        uv=$cache/uv/bin/uv
        if [ ! -x "$uv" ]; then
            say "installing uv"
            "$python" -m venv "$cache/uv"
            "$cache/uv/bin/pip" install --quiet --disable-pip-version-check uv
        fi
    fi
    # Trust what the machine trusts: many sites have a certificate authority of their own.
    export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-true}" UV_NATIVE_TLS="${UV_NATIVE_TLS:-true}"
    say "making the Python environment"
    [ -x .venv/bin/python ] || "$uv" venv --quiet --python "$python" .venv
    "$uv" pip sync --quiet --python .venv/bin/python --require-hashes "$lock"
    "$uv" pip install --quiet --python .venv/bin/python --no-deps -e .
    echo "$wanted" >$stamp
fi

[ -z "$only_python$docs" ] || exit 0

# --- guest image ------------------------------------------------------------------------------------
.venv/bin/python -m backfill.lab.image >/dev/null
