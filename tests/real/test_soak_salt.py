"""A real guest that Salt configures with the states of bare metal before it takes its first job."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.daemon_rig import DaemonRig, daemon_lab
from tests.real.salt_rig import answers, connect

# The image with Salt has to be built, and Salt's start is emulated: minutes, not seconds.
pytestmark = [pytest.mark.real, pytest.mark.soak]

LIMIT_S = 600.0
GATED: dict[str, Any] = {
    "limits": {"max_instances": 1},
    "salt": {"gate": True, "within_s": LIMIT_S},
    "scale": {"idle_s": 600, "boot_within_s": LIMIT_S},
    "readiness": {"salt_within_s": LIMIT_S, "files_within_s": LIMIT_S, "rest_s": 1},
}


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("salted", hosts=1, time=True, files=True, salt=True) as rig:
        rig.start(**GATED)
        yield rig


def test_a_node_takes_its_first_job_when_all_is_as_its_states_say(rig: DaemonRig) -> None:
    """Boot, key, proof, job; beside the job the minion comes up, and a look is all it takes. What
    somebody changes on the node is found by the next one, and put right by a run.
    """
    low = rig.low(start=False)
    rig.until(lambda: rig.tally(low), LIMIT_S, "the first word of a job on a node of Salt's")
    name, host = rig.where(low)
    assert re.match(r"ok \d+ things are as the states say", seen(rig, name))
    assert {c["ok"] for c in rig.nodes()[name]["checks"]} == {True}
    converges(rig, name)
    rig.out_of_guest(host, name, "echo spoilt >>/etc/security/limits.d/90-backfill.conf")
    told = rig.with_policy("provision", name, "--json", limit_s=2 * LIMIT_S)
    (mended,) = json.loads(told)["nodes"]
    assert (mended["ok"], [state for state, _ in mended["changed"]]) == (True, ["limits"])
    converges(rig, name)
    rig.finish(low)


def test_nodes_that_boot_while_the_master_is_down_work_and_converge_later(rig: DaemonRig) -> None:
    """Keys and lists are made of the master's files, so a node comes up without it, and is seen to
    be what its states say; its minion is heard when the master is back.
    """
    rig.lab.stop("salt-master")
    rig.restart(**{**GATED, "scale": {"idle_s": 0, "boot_within_s": LIMIT_S}})
    rig.until(lambda: not rig.nodes(), LIMIT_S, "the end of the former node")
    rig.restart(**GATED)
    low = rig.low(start=False)
    rig.until(lambda: rig.tally(low), LIMIT_S, "the first word of a job without a master")
    name, _ = rig.where(low)
    assert "as the states say" in seen(rig, name)
    rig.lab.start("salt-master")
    converges(rig, name)
    rig.finish(low)


def test_a_pillar_without_its_end_makes_no_node(rig: DaemonRig) -> None:
    """Nothing is put into a seed that was rendered from half a pillar; the sentence names what is
    missing, and with the whole pillar the same job gets its node without anybody's word.
    """
    rig.restart(**{**GATED, "scale": {"idle_s": 0, "boot_within_s": LIMIT_S}})
    rig.until(lambda: not rig.nodes(), LIMIT_S, "the end of the former node")
    rig.restart(**GATED)
    pillar = rig.lab.dir / "salt/pillar/backfill.sls"
    whole = pillar.read_text()
    values = json.loads(whole)
    del values["backfill"]["sentinel"]
    pillar.write_text(json.dumps(values))
    try:
        low = rig.low(start=False)
        rig.until(
            lambda: any("sentinel" in str(r.body) for r in rig.journal("outcome")),
            LIMIT_S,
            "a refusal that names the pillar's end",
        )
        assert rig.instances() == {}
        name = rig.until(lambda: next(iter(rig.nodes()), ""), LIMIT_S, "the node that failed")
        rig.becomes(name, "failed", limit_s=LIMIT_S)
    finally:
        pillar.write_text(whole)
    rig.until(lambda: rig.tally(low), LIMIT_S, "the first word of the job that waited")
    rig.finish(low)


def converges(rig: DaemonRig, name: str) -> None:
    """The minion is heard, a look of it shows that nothing is to be done, and nobody else has a
    key.
    """
    own = f"{name}.g{rig.nodes()[name]['generation']}"
    master = connect(rig.lab)
    try:
        rig.until(lambda: answers(master, own, 60.0), LIMIT_S, "an answer of the node's minion")
    finally:
        master.close()
    given = orders(rig)
    (found,) = json.loads(rig.with_policy("drift", "--json", limit_s=LIMIT_S))["nodes"]
    assert (found["node"], found["ok"], found["changed"]) == (name, True, [])
    assert found["looked"]
    assert orders(rig) == given  # the daemon looked by itself
    assert [key.name for key in (rig.lab.dir / "salt/pki/minions").iterdir()] == [own]


def orders(rig: DaemonRig) -> int:
    """How many looks and runs the master has ordered; it keeps what is asked about keys, too."""
    kept = (rig.lab.dir / "salt/cache/jobs").glob("*/*/.load.p")
    loads = [path.read_bytes() for path in kept]
    return sum(b"backfill_look" in load or b"state.apply" in load for load in loads)


def seen(rig: DaemonRig, name: str) -> str:
    """What the guest told of its states before it was released."""
    (check,) = (c for c in rig.nodes()[name]["checks"] if c["name"] == "salt")
    return str(check["sentence"])
