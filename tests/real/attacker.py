"""A job of an ordinary user that looks for secrets wherever it may read in its guest."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

from backfill.lab.spec import JOB_USER, JOB_USER_LINE
from tests.real.jobs_rig import JobsRig

LIMIT_S = 900.0
# All that can be read, each with its name; what is big, or never ends, to its first megabytes.
_LOOT = r"""
look() { echo "== $*"; timeout 30 cat "$@" 2>&1 </dev/null | head -c 3000000; echo; }
id
ls -la /dev/vd* /dev/sr* /dev/disk/by-label /etc/munge 2>&1
echo "== own environment"
env
look /etc/munge/munge.key /proc/cmdline /proc/kmsg /proc/kcore
for file in /dev/vd? /dev/sr? /dev/disk/by-label/* /dev/mem /dev/console /dev/hvc* /dev/ttyS* /dev/vport*; do
    [ ! -e "$file" ] || look "$file"
done
timeout 30 dmesg 2>&1
look /proc/[0-9]*/environ /proc/[0-9]*/cmdline
look /proc/[0-9]*/mem /proc/[0-9]*/root/etc/munge/munge.key /proc/[0-9]*/fd/0
echo "== files"
{
    timeout 200 find /etc /run /dev/shm /root /home /tmp /mnt /srv /opt /var -xdev \
        -path /var/lib/dpkg -prune -o -type f -readable -size -2000k -exec cat {} + 2>&1
    printf '\n== %s\n' "all files: $?"
} | head -c 8000000
ask() {
    echo "== metadata $1 $2"
    timeout 20 bash -c 'exec 9<>"/dev/tcp/$0" || exit
        printf "GET %s HTTP/1.0\r\nHost: metadata\r\n\r\n" "$1" >&9
        cat <&9' "$1" "$2"
}
# Where clouds answer, and where this one does.
for path in /openstack/latest/user_data /latest/user-data; do ask 169.254.169.254/80 "$path"; done
[ -z "$METADATA" ] || for path in /openstack/latest/user_data /openstack/latest/meta_data.json \
        /openstack/latest/vendor_data.json /openstack/latest/network_data.json \
        /latest/user-data /2009-04-04/user-data /latest/meta-data/; do ask "$METADATA/8775" "$path"; done
printf '\n== the %s\n' end
"""

# What it has to have tried, whatever it was answered.
_TRIED = (
    rb"^== /dev/vda$",
    rb"^== /dev/(console|ttyS\d)$",
    rb"^== /proc/1/environ ",
    rb"^== /etc/munge/munge\.key /proc/cmdline",
    rb"^== own environment$",
    rb"^== metadata 169\.254\.169\.254/80 /openstack/latest/user_data$",
)


def loot(rig: JobsRig, node: str, metadata: str = "") -> bytes:
    """All that a job of an ordinary user can read on this node, and at this metadata address."""
    script = f"METADATA={metadata}\n{_LOOT}"
    packed = base64.b64encode(script.encode()).decode()
    # Not through a pipe: there the script would read its own rest, as some process's input.
    inner = f'bash -c "$(echo {packed} | base64 -d)" </dev/null 2>&1 | base64 -w 0'
    argv = ["srun", "-p", "htc", "-w", node, "-D", "/tmp", "bash", "-c", inner]
    done = rig.lab.run("ctl", argv, check=True, user=JOB_USER, timeout_s=LIMIT_S)
    said = done.stdout
    found = base64.b64decode(said)
    # Neither stands so in the script, which is itself found among the command lines.
    assert re.search(rb"\n== all files: [01]\n", found), found[-500:]
    assert found.endswith(b"\n== the end\n"), found[-500:]
    assert b"uid=0(" not in found.splitlines()[0]
    for tried in _TRIED:
        assert re.search(tried, found, re.MULTILINE), f"it has not tried {tried!r}"
    return found


_JOB_UID = JOB_USER_LINE.split(":")[2]
# It looks until it is told to end. What it looks for does not stand so in the script itself.
_WATCH = r"""
while [ ! -e "$0.end" ]; do
    cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\000' '\n' |
        grep -o 'MUNGE[:][^ ]*' >>"$0"
    : >"$0.looked"
done
mv "$0" "$0.whole"
"""


class Watcher:
    """A program of an ordinary user in a guest that looks for credentials wherever others run programs.

    Slurm does not know of it, so it goes on while the node's jobs are suspended.
    """

    _SEEN = "/tmp/watched"

    def __init__(self, rig: JobsRig, host: str, node: str) -> None:
        self._rig, self._host, self._node = rig, host, node
        packed = base64.b64encode(_WATCH.encode()).decode()
        start = f'sh -c "$(echo {packed} | base64 -d)" {self._SEEN} </dev/null >/dev/null 2>&1 &'
        # Guests do not know the user by name.
        become = f"setpriv --reuid {_JOB_UID} --regid {_JOB_UID} --clear-groups"
        self._run(f"rm -f {self._SEEN}*; setsid {become} {start}")
        self.looks()

    def looks(self) -> None:
        """Wait until it has looked at everything once more, from now on."""
        looked = f"{self._SEEN}.looked"
        self._run(f"rm -f {looked}")
        script = f"test ! -e {looked} || {{ rm -f {looked}; echo yes; }}"
        for _ in range(2):  # the look that is going on may have begun before
            self._rig.until(lambda: self._run(script), LIMIT_S, "a look at all programs")

    def end(self) -> list[str]:
        """End it; all that it has found."""
        self._run(f"touch {self._SEEN}.end")
        whole = f"cat {self._SEEN}.whole 2>/dev/null && echo whole || :"
        found = self._rig.until(lambda: self._run(whole), LIMIT_S, "the end of the watch")
        return found.splitlines()[:-1]

    def _run(self, script: str) -> str:
        return self._rig.out_of_guest(self._host, self._node, script)


def shapes(secret: bytes) -> Iterator[bytes]:
    """The secret as it may stand somewhere: as it is, and in the usual writings; parts of it."""
    part = secret[:48]
    yield part
    yield part.hex().encode()
    yield part.hex().upper().encode()
    for shift in range(3):  # wherever it begins in a longer text
        packed = base64.b64encode(b"\0" * shift + part)
        yield packed[4:60]


def found_in(loot: bytes, secret: bytes) -> list[bytes]:
    """In which writings the secret was found, wherever lines are broken."""
    joined = loot.replace(b"\n", b"").replace(b"\r", b"").replace(b"\\n", b"")
    return [shape for shape in shapes(secret) if shape in loot or shape in joined]
