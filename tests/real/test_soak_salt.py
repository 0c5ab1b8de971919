"""A real guest that Salt configures with the states of bare metal before it takes its first job."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.daemon_rig import DaemonRig, daemon_lab

# The image with Salt has to be built, and Salt's start is emulated: minutes, not seconds.
pytestmark = [pytest.mark.real, pytest.mark.soak]

LIMIT_S = 600.0
GATED: dict[str, Any] = {
    "limits": {"max_instances": 1},
    "salt": {"gate": True},
    "scale": {"idle_s": 600, "boot_within_s": LIMIT_S},
    "readiness": {"salt_within_s": LIMIT_S, "files_within_s": LIMIT_S},
}


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("salted", hosts=1, time=True, files=True, salt=True) as rig:
        rig.start(**GATED)
        yield rig


def test_a_node_takes_its_first_job_when_all_is_as_its_states_say(rig: DaemonRig) -> None:
    """Boot, key, proof, job; beside the job the states are run and find nothing that differs; and
    the node's key is the only one.
    """
    low = rig.low(start=False)
    rig.until(lambda: rig.tally(low), LIMIT_S, "the first word of a job on a node of Salt's")
    name, _ = rig.where(low)
    checks = {c["name"]: c for c in rig.nodes()[name]["checks"]}
    assert re.match(r"ok (\d+ things are as the states say|pillar schema)", said(checks["salt"]))
    assert all(c["ok"] for c in checks.values())
    generation = rig.nodes()[name]["generation"]
    results = rig.lab.dir / "salt/cache/jobs"
    rig.until(
        lambda: list(results.glob(f"*/*/{name}.g{generation}/return.p")), LIMIT_S,
        "the first run of the states",
    )  # fmt: skip
    (found,) = json.loads(rig.with_policy("drift", "--json", limit_s=LIMIT_S))["nodes"]
    assert (found["node"], found["ok"], found["changed"]) == (name, True, [])
    keys = rig.lab.dir / "salt/pki/minions"
    assert [key.name for key in keys.iterdir()] == [f"{name}.g{generation}"]
    rig.finish(low)


def said(check: dict[str, Any]) -> str:
    """What the guest told of one check."""
    return str(check["sentence"])
