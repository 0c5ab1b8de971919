"""What job_submit.lua and Slurm are told of a job's own machines, out of the policy file."""

from __future__ import annotations

from pathlib import Path

from backfill.drivers.slurm.hooks.machines_lua import MachineGate, NamedGate, machines_part
from backfill.ui import slurm_parts
from backfill.ui.assemble import libvirt_config, openstack_config
from tests.unit.policy_files import LIBVIRT, LIBVIRT_HOST, loaded, text
from tests.unit.test_config_openstack import HOSTS as CLOUD_HOSTS
from tests.unit.test_config_openstack import SECTION as CLOUD

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


def test_the_policy_file_says_which_networks_there_are_and_whose(tmp_path: Path) -> None:
    """The script and the drivers of the hosts have the same ones."""
    networks = "[{name: lan, bridge: br1}, {name: ours, bridge: br2, users: [ada], accounts: [physics]}]"
    own = f"own_machines: {{enabled: true, networks: {networks}}}"
    config = loaded(tmp_path, text(LIBVIRT, own, hosts=LIBVIRT_HOST))
    gate = slurm_parts.hook_plan(config).machines
    assert gate is not None
    written = machines_part(gate)
    assert '["lan"] = { users = {  }, accounts = {  }, whose = "" }' in written
    whose = 'whose = "user ada, account physics"'
    assert (
        f'["ours"] = {{ users = {{ ["ada"] = true }}, accounts = {{ ["physics"] = true }}, {whose} }}'
        in written
    )
    assert "clouds = false" in written
    assert config.libvirt is not None
    settings = libvirt_config(config, config.libvirt, list(config.hosts))
    assert settings.networks == {"lan": "br1", "ours": "br2"}


def test_the_policy_file_says_how_large_a_disk_may_be(tmp_path: Path) -> None:
    """Never less than all instances have, whatever the key says."""
    for most_gb, counts_gb in ((100, 100), (1, 4)):
        own = f"own_machines: {{enabled: true, most_disk_gb: {most_gb}}}"
        gate = slurm_parts.hook_plan(loaded(tmp_path, text(LIBVIRT, own, hosts=LIBVIRT_HOST))).machines
        assert gate is not None
        assert f"most_disk_gb = {counts_gb}," in machines_part(gate)


def test_where_all_machines_are_in_a_cloud_the_script_knows_it(tmp_path: Path) -> None:
    """So that devices are refused as the job is submitted; Neutron's name is not ours."""
    own = "own_machines: {enabled: true, networks: [{name: lan, cloud: project-lan}]}"
    config = loaded(tmp_path, text(CLOUD, own, hosts=CLOUD_HOSTS))
    gate = slurm_parts.hook_plan(config).machines
    assert gate is not None
    assert "clouds = true" in machines_part(gate)
    assert config.openstack is not None
    shape = openstack_config(config, config.openstack, list(config.hosts)).shape
    assert shape.networks == {"lan": "project-lan"}


def test_the_policy_file_says_which_images_are_whose(tmp_path: Path) -> None:
    """Only of those that are somebody's: the daemon reads its catalogue anew, and the script does not."""
    images = "  images: {gold: secret, default: node}\n"
    entries = "environments: {entries: [{name: au, image: gold, users: [ada], accounts: [hep]}]}"
    config = loaded(tmp_path, text(CLOUD + images, entries, OWN, hosts=CLOUD_HOSTS))
    gate = slurm_parts.hook_plan(config).machines
    assert gate is not None
    theirs = (("ada",), ("hep",), "user ada, account hep")
    assert gate.images == (NamedGate("au", *theirs), NamedGate("gold", *theirs))
    simulated = slurm_parts.hook_plan(loaded(tmp_path, text(OWN))).machines
    assert simulated is not None
    assert simulated.images == ()
    assert "images = {  }," in machines_part(simulated)
