"""The main job with nodes that stand in slurm.conf: a daemon, real guests, the commands for it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.lab import image, roots
from backfill.lab.cluster import Lab
from backfill.lab.policyfile import write_policy
from backfill.lab.spec import LabSpec
from tests.real.daemon_rig import _ROOT, PATIENT, PAUSE, REQUEUE, DaemonRig

pytestmark = [pytest.mark.real, pytest.mark.gate]
_LADDER = {"ladder": [PAUSE, REQUEUE]}


_WAYS = [
    ("conf", "22.05"),
    *(
        pytest.param(way, marks=pytest.mark.soak)
        for way in [("cloud", "22.05"), ("cloud", "24.11"), ("conf", "24.11"), ("conf", "26.05")]
    ),
]


@pytest.fixture(scope="module", params=_WAYS, ids="-".join)
def rig(request: pytest.FixtureRequest, lab_name: object) -> Iterator[DaemonRig]:
    method, release = request.param
    guest = image.build(recipe=image.Recipe(release))
    assert callable(lab_name)
    name = lab_name(f"reg-{method}")
    spec = LabSpec(name=name, hooks="slurmctld", slurm_version=release, **PATIENT)
    lab = Lab.up(roots.equip(spec), tied=True)
    try:
        made = DaemonRig(lab, guest)
        made.changes = {"slurm": _slurm(lab, method), **_LADDER}
        yield made
        if not made.dead:
            made.stop()
    finally:
        lab.down()
    shutil.rmtree(lab.dir)


def _slurm(lab: Lab, method: str) -> dict[str, object]:
    # A site's own way to restart slurmctld: here the machine's init does it.
    socket = str(lab.dir / "run/ctl.sock")
    script = (
        "from pathlib import Path; from backfill.lab import control; "
        f"control.ask(Path({socket!r}), {{'op': 'restart', 'service': 'slurmctld'}})"
    )
    restart = ["env", f"PYTHONPATH={_ROOT}", sys.executable, "-c", script]
    hooks = {"directory": str(lab.dir / "ours"), "log": str(lab.dir / "hook.log")}
    return {"registration": method, "restart": restart, "hooks": hooks}


def ours(rig: DaemonRig, *argv: str, check: bool = True) -> str:
    """`backfill slurm …` on the controller."""
    policy = write_policy(rig.lab, rig.image, **rig.changes)
    command = [sys.executable, "-m", "backfill", "slurm", *argv, "--config", str(policy)]
    done = rig.lab.run("ctl", command, env={"PYTHONPATH": str(_ROOT)}, timeout_s=300)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_from_an_untouched_slurm_conf_to_an_evicted_job(rig: DaemonRig) -> None:
    """apply says what to add; then instances come, are pushed aside, return, and are parked."""
    conf = rig.lab.slurm_conf
    said = ours(rig, "apply", check=False)
    assert "add the line 'Include backfill.conf' at its end" in said
    with conf.open("a") as lines:
        lines.write("Include backfill.conf\n")
    before = conf.read_bytes()
    assert "+NodeName=vn1 NodeAddr=10.77.1.1 " in ours(rig, "diff", check=False)
    how = "restart" if rig.lab.spec.slurm_version == roots.INSTALLED else "reconfigure"
    assert json.loads(ours(rig, "apply", "--json"))["reloaded"] == how
    assert json.loads(ours(rig, "diff", "--json")) == {"diff": ""}

    rig.start(**{**rig.changes, "scale": {"idle_s": 3}})
    began = _slurmctld(rig)
    low = rig.low()
    name, host = rig.where(low)
    high = rig.high(host)
    rig.becomes(name, "parked")
    rig.release(high)
    rig.becomes(name, "ready")
    rig.counting(low)
    refused = ours(rig, "rollback", check=False)
    assert f"job {low} holds it" in refused
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"
    rig.until(lambda: name not in rig.nodes(), what=f"the removal of {name}")
    assert "backfill: parked" in rig.ctl("scontrol", "-F", "-o", "show", "node", name)
    again = rig.low()
    rig.finish(again)
    rig.until(lambda: not rig.nodes(), what="the removal of all instances")
    assert _slurmctld(rig) == began
    assert conf.read_bytes() == before
    rig.stop()


def _slurmctld(rig: DaemonRig) -> int:
    return rig.lab.status().machines["ctl"].services["slurmctld"]


def test_no_path_of_ours_is_left_behind(rig: DaemonRig) -> None:
    """With the method changed back, the file is empty again."""
    rig.changes = {**rig.changes, "slurm": {**rig.changes["slurm"], "registration": "dynamic"}}
    ours(rig, "apply")
    text = Path(rig.lab.slurm_conf.with_name("backfill.conf")).read_text()
    assert [line for line in text.splitlines() if not line.startswith("#")] == []
    assert set(rig.node_states()) == set(rig.lab.hosts)
