"""Where a dry slurmctld can be started: by programs in the place of `unshare`, `mount` and slurmctld."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.conf.dry import DryVerdict, dry_start

# Like that of a container whose profile forbids every mount.
_UNSHARE = """#!/bin/sh
for word; do
    [ "$word" != --mount ] || { echo "unshare: cannot change root filesystem propagation" >&2; exit 1; }
done
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


@pytest.mark.parametrize(("auth", "tried"), [("munge", True), ("slurm", False)])
def test_a_container_that_lets_nobody_mount(tmp_path: Path, auth: str, tried: bool) -> None:
    """Only with auth/slurm would it take the place of the living one's socket."""
    tools, conf = tmp_path / "bin", tmp_path / "etc/slurm.conf"
    programs = {
        "unshare": _UNSHARE,
        "ip": "#!/bin/sh\n",
        "slurmctld": "#!/bin/sh\necho slurmctld: Running as primary controller\n",
    }
    tools.mkdir()
    for name, text in programs.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    conf.parent.mkdir()
    conf.write_text(f"ClusterName=c\nAuthType=auth/{auth}\nInclude backfill.conf\n")
    commands = SlurmTools(conf, tools)
    verdict = dry_start(commands, conf, conf.with_name("backfill.conf"), "", tmp_path / "state")
    assert verdict.tried is tried
    assert verdict == DryVerdict(True) or "cannot change root filesystem propagation" in verdict.problem
