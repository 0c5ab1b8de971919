"""An instance that is gone, and a provisioner that cannot be told so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.drivers.simulated.provisioner import SimulatedProvisioner
from backfill.engine.execute.instances import on_instance
from backfill.engine.looking import Outside
from backfill.ports.errors import UnreachableError
from tests.unit.simulated_cluster import cluster, spec

PEM = "/etc/salt/pki/minion/minion.pem"
DELETE = act.DeleteInstance(subject="v1", generation=1, reason="a test", host="n1")


class Out(SimulatedProvisioner):
    """Its master makes keys, but forgets none when it is told to."""

    def expel(self, node: str, generation: int) -> None:
        raise UnreachableError("salt", "/usr/bin/python3 did not start Salt", "see the section salt")


@pytest.mark.parametrize("off", [False, True])
def test_an_instance_is_gone_although_its_key_cannot_be_forgotten(
    off: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its jobs start over; the log tells of the key, which is void once the name is used again."""
    world, salt = cluster(), Out()
    world.provider.create(spec())
    old = salt.enrol("v1", 1, "10.0.0.1/8")[PEM].content
    outside = Outside(world.slurm, {"n1": world.provider}, world.clock, provisioner=salt)
    told = on_instance(outside, replace(DELETE, off=off))
    assert told == [ch.InstanceGone("n1", "v1", world.clock.now())]
    assert "v1 is gone, but its key is accepted until its name is enrolled anew: salt: " in caplog.text
    salt.enrol("v1", 2, "10.0.0.1/8")
    assert not salt.accepts(old)
