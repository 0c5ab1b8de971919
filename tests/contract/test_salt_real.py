"""Salt keeps the Provisioner's contract, and what happens when something of it is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from backfill.lab.saltimage import STATES
from backfill.lab.waiting import wait_until
from backfill.ports.errors import RefusedError
from backfill.ports.provider import SeedFile
from tests.contract.provisioner import PEM, ProvisionerContract
from tests.real.salt_rig import LIMIT_S, SaltRig, connect, salt_lab

pytestmark = [pytest.mark.real, pytest.mark.gate]

SAMPLE = yaml.safe_load((STATES / "pillar/backfill.sls").read_text())["backfill"]


@pytest.fixture(scope="module")
def rig() -> Iterator[SaltRig]:
    with salt_lab("provisioner") as made:
        yield made


class TestSalt(ProvisionerContract):
    """See the contract."""


def test_bare_metal_is_in_the_report(rig: SaltRig) -> None:
    """A machine with a key of its own name is bare metal: the same states, and its drift shows."""
    key = rig.provisioner._ask("make_key", id="bm1")
    grains = {"backfill": {"role": "node", "kind": "metal", "node": "bm1", "address": "10.77.0.11"}}
    pki = "/etc/salt/pki/minion"
    rig.start(
        "bm1",
        {
            "/etc/salt/minion_id": SeedFile(b"bm1\n"),
            "/etc/salt/grains": SeedFile(json.dumps(grains).encode()),
            PEM: SeedFile(key["private"].encode()),
            f"{pki}/minion.pub": SeedFile(key["public"].encode()),
            f"{pki}/minion_master.pub": SeedFile(key["master"].encode()),
        },
    )
    assert rig.provisioner.enrolled()["bm1"] == 0
    state = rig.spoil("bm1")
    found = rig.provisioner.apply(["bm1"], test=True)["bm1"]
    assert [name for name, _ in found.changed] == [state]
    rig.stop("bm1")


def test_states_are_run_only_where_a_look_is_not_enough(rig: SaltRig) -> None:
    """A node that is as its states say is looked at; another munge key, which no list holds, and
    states that come to something else since the node was made are found and put right by a run.
    """
    rig.start("vn11", rig.provisioner.enrol("vn11", 1, "10.77.1.11/16"))
    ordered = runs_ordered(rig)
    fine = rig.provisioner.apply(["vn11"], test=False)["vn11"]
    assert (fine.ok, fine.changed, fine.looked) == (True, (), True)
    assert runs_ordered(rig) == ordered
    rig.in_minion("vn11", "echo another >/etc/munge/munge.key")
    for test in (True, False):
        found = rig.provisioner.apply(["vn11"], test)["vn11"]
        assert [name for name, _ in found.changed] == ["munge-key"]
    assert rig.provisioner.apply(["vn11"], test=True)["vn11"].looked
    rig.pillar(limits={"nofile": 17})
    try:
        found = rig.provisioner.apply(["vn11"], test=False)["vn11"]
        assert (found.ok, found.looked) == (True, False)
        assert [name for name, _ in found.changed] == ["limits"]
        assert "nofile 17" in rig.in_minion("vn11", "cat /etc/security/limits.d/90-backfill.conf")
    finally:
        rig.pillar(limits=SAMPLE["limits"])
    rig.stop("vn11")


def runs_ordered(rig: SaltRig) -> list[str]:
    """Every order to run states that the master has given."""
    orders = (rig.lab.dir / "salt/cache/jobs").glob("*/*/.load.p")
    return sorted(str(path) for path in orders if b"state.apply" in path.read_bytes())


def test_a_deleted_key_cannot_come_back(rig: SaltRig) -> None:
    """Whoever still has an older generation's key, as a copy of its guest has, is not heard."""
    old = rig.provisioner.enrol("vn5", 1, "10.77.1.5/16")
    new = rig.provisioner.enrol("vn5", 2, "10.77.1.5/16")
    rig.start("vn5", new)
    rig.start("copy", old, wait=False)
    waiting = rig.lab.dir / "salt/pki/minions_pre/vn5.g1"  # it knocks, and nobody opens
    assert wait_until(waiting.exists, LIMIT_S)
    assert rig.provisioner.enrolled()["vn5"] == 2
    assert rig.provisioner.apply(["vn5"], test=True)["vn5"].ok
    rig.stop("copy")
    rig.stop("vn5")


def test_two_minions_with_one_id_are_no_more_after_the_next_enrolment(rig: SaltRig) -> None:
    """A copy of a running node answers under its name until the next generation is enrolled: then
    neither the old node nor its copy is heard, and the new one is alone.
    """
    old = rig.provisioner.enrol("vn10", 1, "10.77.1.10/16")
    rig.start("vn10", old)
    rig.start("twin", old, wait=False)
    assert wait_until(lambda: rig.answers("vn10.g1"), LIMIT_S)
    new = rig.provisioner.enrol("vn10", 2, "10.77.1.10/16")
    assert wait_until(lambda: not rig.answers("vn10.g1"), LIMIT_S)
    rig.stop("vn10")
    rig.start("vn10", new)
    assert not rig.answers("vn10.g1")
    assert rig.provisioner.apply(["vn10"], test=True)["vn10"].ok
    rig.stop("twin")
    rig.stop("vn10")


def test_the_controllers_states_are_applied(rig: SaltRig) -> None:
    """Its role is run for real, in a root of its own; a second run finds nothing to do, and the
    programs that are to read the files take them. What is the site's stays.
    """
    key = rig.provisioner._ask("make_key", id="head")
    grains = {"backfill": {"role": "controller", "kind": "metal"}}
    pki = "/etc/salt/pki/minion"
    people = {
        "groups": [{"name": "salted", "gid": 61234}],
        "users": [{"name": "salty", "uid": 61235, "gid": 61234, "home": "/home/salty"}],
    }
    # What the states call in place of `backfill slurm`; it answers alike, and notes each call.
    program = rig.lab.dir / "minions/backfill"
    program.parent.mkdir(exist_ok=True)
    program.write_text(_BACKFILL)
    program.chmod(0o755)
    rig.pillar(
        **people,
        slurm={"policy": "/etc/backfill/policy.yaml", "program": str(program)},
        time={"servers": ["10.77.0.1"], "networks": ["10.77.0.0/16"], "upstream": ["10.77.0.2"]},
    )
    try:
        rig.start(
            "head",
            {
                "/etc/salt/minion_id": SeedFile(b"head\n"),
                "/etc/salt/grains": SeedFile(json.dumps(grains).encode()),
                # A minion that is not tuned for guests fetches it by itself.
                f"/var/cache/salt/minion/extmods/states/{SLURM.name}": SeedFile(SLURM.read_bytes()),
                PEM: SeedFile(key["private"].encode()),
                f"{pki}/minion.pub": SeedFile(key["public"].encode()),
                f"{pki}/minion_master.pub": SeedFile(key["master"].encode()),
            },
        )
        assert rig.provisioner.apply(["head"], test=True)["head"].changed == ()
        time = rig.in_minion("head", "chronyd -p -f /etc/chrony/chrony.conf")
        assert "allow 10.77.0.0/16" in time
        assert "server 10.77.0.2 iburst" in time
        for path in ("/etc/hosts", "/etc/nsswitch.conf"):
            assert rig.in_minion("head", f"cat {path}") == Path(path).read_text()
        assert "Pseudo = /home;" in rig.in_minion("head", "cat /etc/ganesha/ganesha.conf")
        slurm = rig.in_minion("head", "cat /etc/slurm/backfill-site.conf")
        assert "SlurmctldParameters=enable_configless" in slurm
        assert rig.in_minion("head", "ls /etc/slurm/backfill.conf /etc/slurm/job_submit.lua || :") == ""
        called = rig.in_minion("head", "cat /run/called").splitlines()
        assert [line for line in called if "diff" not in line and "status" not in line] == [
            "slurm apply --config /etc/backfill/policy.yaml --json",
            "slurm hooks install --config /etc/backfill/policy.yaml --json",
        ]
        master = rig.in_minion("head", "cat /etc/salt/master.d/backfill.conf")
        assert "auto_accept: false" in master
        found = rig.in_minion("head", "id salty; stat -c '%U %a' /etc/munge/munge.key")
        assert found.splitlines() == ["uid=61235(salty) gid=61234(salted) groups=61234(salted)", "munge 400"]
        rig.stop("head")
    finally:
        rig.pillar(groups=[], users=[], time={"servers": [], "networks": ["10.77.0.0/16"]})


SLURM = STATES / "_states/backfill_slurm.py"
_BACKFILL = """#!/bin/sh
echo "$*" >>/run/called
case "$2 $3" in
"diff "*) [ -e /run/applied ] && echo '{"diff": ""}' || { echo '{"diff": "+Include"}'; exit 1; } ;;
"apply "*) touch /run/applied; echo '{"diff": "+Include"}' ;;
"hooks status") [ -e /run/hooked ] && echo '{"installed": true, "problems": []}' ||
    { echo '{"installed": false, "problems": []}'; exit 1; } ;;
"hooks install") touch /run/hooked; echo '{"diff": "+Prolog"}' ;;
esac
"""


def test_a_node_that_starts_without_a_master_converges(rig: SaltRig) -> None:
    """The master is down while the node comes up; when it is back, the node's states are run."""
    files = rig.provisioner.enrol("vn4", 1, "10.77.1.4/16")
    rig.lab.stop("salt-master")
    rig.start("vn4", files, wait=False)
    rig.lab.start("salt-master")
    assert wait_until(lambda: rig.settled("vn4"), LIMIT_S)
    assert rig.in_minion("vn4", "cat /run/backfill/salt").startswith("ok")
    rig.stop("vn4")


@pytest.mark.parametrize("key", ["auto_accept", "open_mode"])
def test_a_master_that_lets_everybody_in_is_told(rig: SaltRig, key: str) -> None:
    """By its own configuration, as Salt reads it."""
    rig.provisioner.check()
    config = rig.lab.dir / "etc/salt/master"
    open_to_all = config.with_name(f"{key}.conf")
    open_to_all.write_text(json.dumps({**yaml.safe_load(config.read_text()), key: True}))
    with (
        closing(connect(rig.lab, config=open_to_all)) as provisioner,
        pytest.raises(RefusedError, match=f"{key} is set"),
    ):
        provisioner.check()


def test_a_pillar_without_its_end_fails_loudly(rig: SaltRig) -> None:
    """Then nothing is changed, and the sentence names what is missing; the next one is fine."""
    rig.start("vn3", rig.provisioner.enrol("vn3", 1, "10.77.1.3/16"))
    rig.pillar(sentinel=None)
    try:
        found = rig.provisioner.apply(["vn3"], test=False)["vn3"]
        assert found.answered
        assert not found.ok
        assert "sentinel" in found.problem
    finally:
        rig.pillar(sentinel="backfill-pillar-complete")
    assert rig.provisioner.apply(["vn3"], test=False)["vn3"].ok
    rig.stop("vn3")


def test_a_black_hole_in_the_resolver_holds_up_nobody(rig: SaltRig) -> None:
    """Names come from files: a name server that swallows questions is never asked."""
    files = rig.provisioner.enrol("vn2", 1, "10.77.1.2/16")
    assert b"hosts: files\n" in files["/etc/nsswitch.conf"].content
    rig.start("vn2", {**files, "/etc/resolv.conf": SeedFile(b"nameserver 10.77.200.200\n", 0o644)})
    rig.stop("vn2")
