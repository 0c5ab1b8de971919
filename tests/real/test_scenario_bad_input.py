"""Bad input on a living cluster: one sentence, an exit status, and nothing has changed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from backfill.lab.policyfile import policy, write_policy
from backfill.lab.spec import CONTROLLER_ADDRESS, HOOK_PORT
from tests.real.daemon_rig import PAUSE, REQUEUE, DaemonRig, daemon_lab

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def rig() -> Iterator[DaemonRig]:
    with daemon_lab("bad") as made:
        made.start()
        made.stop()
        yield made


def everything(rig: DaemonRig) -> tuple[object, ...]:
    """All that a daemon might change."""
    state = rig.lab.dir / "daemon"
    files = sorted((p.name, p.stat().st_size, p.stat().st_mtime) for p in state.iterdir())
    return (rig.node_states(), rig.ctl("squeue"), rig.domains(), files, sorted(rig.lab.shared.iterdir()))


def refusal(rig: DaemonRig, **changes: Any) -> tuple[int, str]:
    """Start a daemon that must not start; its exit status and its words."""
    policy = write_policy(rig.lab, rig.image, **changes)
    done: subprocess.CompletedProcess[str] = rig.run_daemon(policy)
    assert "Traceback" not in done.stderr
    words = done.stderr.strip()
    assert words
    assert "\n" not in words
    return done.returncode, words


@pytest.mark.parametrize(
    ("changes", "status", "parts"),
    [
        ({"lader": [PAUSE]}, 78, ("policy.yaml:", "lader is not a known key", "ladder")),
        ({"scale": {"idle_s": "5 parsecs"}}, 78, ("policy.yaml:", "scale.idle_s", "unknown unit parsecs")),
        (
            {"limits": {"keep_memory_mb": "2s"}},
            78,
            ("policy.yaml:", "limits.keep_memory_mb", "unknown unit s"),
        ),
        ({"cluster": "elsewhere"}, 78, ("line ", "elsewhere", "ClusterName")),
        ({"priorities": {"low": ["hct"]}}, 78, ("line ", "hct", "did you mean htc?")),
    ],
    ids=["unknown key", "unknown unit", "wrong unit", "other cluster", "unknown partition"],
)
def test_a_bad_file_changes_nothing(
    rig: DaemonRig, changes: dict[str, Any], status: int, parts: tuple[str, ...]
) -> None:
    """The place, what is wrong, and what would be right."""
    before = everything(rig)
    code, words = refusal(rig, **changes)
    assert code == status
    assert all(part in words for part in parts), words
    assert everything(rig) == before


def host(rig: DaemonRig, name: str, uri: str) -> dict[str, Any]:
    return {"hosts": [{"name": name, "provider": "libvirt", "uri": uri}]}


def test_a_host_that_slurm_does_not_know(rig: DaemonRig) -> None:
    """The name is no node: the sentence says what to write for a host that is none."""
    before = everything(rig)
    code, words = refusal(rig, **host(rig, "bm9", rig.lab.libvirt_uri("bm1")))
    assert code == 78
    assert "bm9" in words
    assert "node: null" in words
    assert everything(rig) == before


def test_a_hypervisor_that_does_not_answer(rig: DaemonRig) -> None:
    """libvirtd is down on the only host."""
    before = everything(rig)
    rig.lab.stop("libvirtd@bm1")
    try:
        code, words = refusal(rig, **host(rig, "bm1", rig.lab.libvirt_uri("bm1")))
    finally:
        rig.lab.start("libvirtd@bm1")
    assert code != 0
    assert "host bm1 cannot be reached" in words
    assert everything(rig) == before


def test_slurm_is_down(rig: DaemonRig) -> None:
    """slurmctld does not run."""
    before = everything(rig)
    rig.lab.stop("slurmctld")
    try:
        code, words = refusal(rig, slurm={"timeout_s": 2})
    finally:
        rig.lab.start("slurmctld")
    assert code == 69
    assert "slurmctld" in words
    rig.until(lambda: everything(rig) == before)


@contextmanager
def slurmd_timeout(rig: DaemonRig, seconds: int) -> Iterator[None]:
    text = rig.lab.slurm_conf.read_text()
    rig.lab.slurm_conf.write_text(text.replace("SlurmdTimeout=0", f"SlurmdTimeout={seconds}"))
    rig.ctl("scontrol", "reconfigure")
    try:
        yield
    finally:
        rig.lab.slurm_conf.write_text(text)
        rig.ctl("scontrol", "reconfigure")


def test_pauses_that_outlast_slurms_patience(rig: DaemonRig) -> None:
    """Slurm would give the paused node up: refused with the setting that helps."""
    with slurmd_timeout(rig, 300):
        before = everything(rig)
        code, words = refusal(rig, ladder=[PAUSE, REQUEUE])
        assert everything(rig) == before
    assert code == 78
    assert "SlurmdTimeout = 300" in words
    assert "SlurmdTimeout=0" in words


def test_a_second_daemon(rig: DaemonRig) -> None:
    """The first one keeps its journal and goes on."""
    rig.start()
    done = rig.run_daemon(rig.lab.dir / "policy.yaml")
    assert done.returncode == 69
    assert "another daemon (pid" in done.stderr
    assert "sentence" in rig.ask("status")
    rig.stop()


def test_a_second_daemon_with_a_state_directory_of_its_own(rig: DaemonRig) -> None:
    """It refuses while the first works; told to, it takes over, and the first ends by itself."""
    state = rig.lab.dir / "second"
    own = {
        "state_dir": str(state),
        "socket": str(rig.lab.dir / "second.sock"),
        "listen": f"{CONTROLLER_ADDRESS}:{HOOK_PORT + 1}",
    }
    second = rig.lab.dir / "second.yaml"
    second.write_text(yaml.safe_dump(policy(rig.lab, rig.image, daemon=own)))
    rig.start()
    done = rig.run_daemon(second)
    assert done.returncode == 69, done.stderr
    assert f"{rig.lab.dir / 'daemon'}) is at work on this cluster" in done.stderr
    assert not (state / "journal.db").exists()
    assert "sentence" in rig.ask("status")
    rig.freeze()
    with rig.daemon_of(second, "--take-over"):
        rig.thaw()
        assert rig.ends() == 69, rig.picture()
        said = f"the lease of this cluster was taken over by .*{state}"
        assert re.search(said, rig.log.read_text()), rig.picture()
    rig.start()
    rig.stop()
