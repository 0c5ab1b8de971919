"""A throw-away Debian: a cached root under an overlay, in namespaces of its own and without a network.

Packages are built in such a root, and installed, upgraded and purged in another. What happens there
is gone with the overlay; the cached root is never written.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backfill.lab import debian
from backfill.lab.spec import LabError, cache_root
from backfill.lab.stale import clear_builds

# $1: the root below, $2: the overlay's own folder, $3: the script; then pairs of a folder outside and
# its place inside. The mounts go with the mount namespace, the processes with the process namespace.
_ENTER = """
base=$1 own=$2 script=$3; shift 3
mount -t overlay overlay -o "lowerdir=$base,upperdir=$own/upper,workdir=$own/work" "$own/root"
mount -t proc proc "$own/root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$own/root/tmp"
for node in null zero full random urandom tty; do
    [ -e "$own/root/dev/$node" ] || : >"$own/root/dev/$node"
    mount --bind "/dev/$node" "$own/root/dev/$node"
done
while [ $# -gt 0 ]; do
    mkdir -p "$own/root$2"
    mount --bind "$1" "$own/root$2"
    shift 2
done
exec chroot "$own/root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \\
    DEBIAN_FRONTEND=noninteractive /bin/sh -euc "$script"
"""


@dataclass(frozen=True, slots=True)
class CleanRoot:
    """One overlay over a cached root. What `run` changes stays until the overlay is left."""

    base: Path
    own: Path
    binds: Mapping[Path, str]

    def run(self, script: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a shell script as root inside, both outputs as one text.

        Raises LabError with the last lines where it fails, unless `check` is False.
        """
        places = [text for outside, inside in self.binds.items() for text in (str(outside), inside)]
        apart = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc", "--uts")
        enter = ("sh", "-euc", _ENTER, "sh", str(self.base), str(self.own), script)
        done = subprocess.run(
            [*apart, "--propagation", "private", *enter, *places],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if check and done.returncode:
            last = "\n".join(done.stdout.splitlines()[-15:])
            raise LabError(f"a script in a clean Debian ended with status {done.returncode}:\n{last}")
        return done


@contextmanager
def clean_root(
    suite: str, packages: Sequence[str], binds: Mapping[Path, str] | None = None
) -> Iterator[CleanRoot]:
    """Yield a fresh overlay over a root of this suite with these packages, which is built if need be.

    `binds`: folders outside and where they appear inside. Raises LabError where it cannot be built.
    """
    base = _base(suite, packages)
    own = Path(tempfile.mkdtemp(prefix="overlay-", dir=base.parent))
    try:
        for name in ("upper", "work", "root"):
            (own / name).mkdir()
        yield CleanRoot(base, own, binds or {})
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _base(suite: str, packages: Sequence[str]) -> Path:
    """Return the cached root, built on first use."""
    how = debian.options(suite, "doc", "locale", "info")
    told = repr((suite, sorted(packages), how))
    place = cache_root() / "clean" / f"{suite}-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            clear_builds(place.parent)
            work = place.parent / f".building-{place.name}"
            debian.install(suite, packages, how, work, place.parent / f"{place.name}.log")
            work.rename(place)
    return place
