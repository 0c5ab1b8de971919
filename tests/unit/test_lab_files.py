"""The file server of a lab is that of the states."""

from __future__ import annotations

from backfill.lab.extras import MOUNT_OPTIONS, NFS_OPTIONS
from backfill.lab.saltimage import STATES


def test_a_lab_serves_and_mounts_files_as_the_states_do() -> None:
    """What labs show of leases, restarts and pauses is then true of a cluster that Salt sets up."""
    assert NFS_OPTIONS in (STATES / "controller/files.sls").read_text()
    assert f"'{MOUNT_OPTIONS}'" in (STATES / "node/files.sls").read_text()
