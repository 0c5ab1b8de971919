"""What job_submit.lua and Slurm are told of a job's own machines, out of the policy file."""

from __future__ import annotations

from pathlib import Path

from backfill.drivers.slurm.hooks.machines_lua import MachineGate, machines_part
from backfill.ui import slurm_parts
from tests.unit.policy_files import LIBVIRT, LIBVIRT_HOST, loaded, text

OWN = "own_machines: {enabled: true, partitions: [vm], constraint: own-vm}"


def test_nothing_is_said_where_jobs_may_not_have_any(tmp_path: Path) -> None:
    """The script comes without that part, and Slurm learns of no feature."""
    config = loaded(tmp_path, text(LIBVIRT, hosts=LIBVIRT_HOST))
    assert slurm_parts.hook_plan(config).machines is None
    assert slurm_parts.wanted(config).known_by is None
    assert "JobHeld" not in machines_part(None)


def test_the_policy_file_says_who_may_ask_and_how(tmp_path: Path) -> None:
    """The script has its partitions and feature, and a line of the managed file makes that known."""
    config = loaded(tmp_path, text(LIBVIRT, OWN, hosts=LIBVIRT_HOST))
    gate = slurm_parts.hook_plan(config).machines
    assert gate is not None
    low = config.policies.priorities.low
    assert (gate.feature, gate.partitions, gate.low) == ("own-vm", ("vm",), low)
    line = slurm_parts.wanted(config).known_by
    assert line is not None
    assert "own-vm" in line.features


def test_no_name_can_end_the_string_that_it_stands_in() -> None:
    """Whatever the policy file calls a partition."""
    written = machines_part(MachineGate('a" .. os.exit() .. "', ("b\\",)))
    assert 'feature = "a\\034 .. os.exit() .. \\034"' in written
    assert 'partitions = { ["b\\092"] = true }' in written
