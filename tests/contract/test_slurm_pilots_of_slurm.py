"""Pilots sent by SlurmUser, who is not root: the same contract, on real clusters."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Iterator
from dataclasses import replace

import pytest

from backfill.drivers.slurm.driver import SlurmManager
from backfill.lab import roots
from backfill.lab.layout import user_ids
from backfill.lab.spec import JOB_USER, SLURM_USER
from backfill.ports.errors import DriverError
from tests.contract.workload_pilots import PilotContract, sender_of
from tests.contract.workload_rig import job
from tests.real.slurm_lab import RealRig, commands_of, slurm_lab

pytestmark = [pytest.mark.real, pytest.mark.soak]


def as_user(rig: RealRig, user: str) -> SlurmManager:
    """The driver, whose tools this user runs on the controller."""
    tools, (uid, gid) = commands_of(rig.lab), user_ids(rig.lab.dir / "etc", user)
    who = ("setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups")
    return SlurmManager(replace(tools, prefix=(*tools.prefix, *who)))


# By munge, and by Slurm's own key, with which whoever has it signs what he asks for.
_WAYS = [
    *((release, "munge") for release in roots.RELEASES),
    *((release, "slurm") for release in roots.SUITES),
]


@pytest.fixture(scope="module", params=_WAYS, ids="-".join)
def cluster(request: pytest.FixtureRequest) -> Iterator[RealRig]:
    release, auth = request.param
    with slurm_lab(f"pilots-of-slurm-{auth}", release=release, auth=auth) as lab:
        made = RealRig.of(lab)
        made.manager = as_user(made, SLURM_USER)
        yield made


@pytest.fixture
def rig(cluster: RealRig, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealRig]:
    """The same, for one test: the driver, too, takes itself for SlurmUser's."""
    slurm = user_ids(cluster.lab.dir / "etc", SLURM_USER)[0]
    with monkeypatch.context() as patched:
        patched.setattr("backfill.drivers.slurm.pilots.os.geteuid", lambda: slurm)
        yield cluster
    cluster.reset()


class TestPilotsOfSlurmUser(PilotContract):
    def test_a_pilot_has_its_users_rights_and_no_others(self, rig: RealRig) -> None:
        """Its user and its group, which are neither root's nor SlurmUser's."""
        spec = rig.pilot(1)
        sent, person = sender_of(rig).submit_pilot(spec), pwd.getpwnam(spec.user)
        shown = rig.ctl("scontrol", "show", "job", sent)
        assert f"UserId={spec.user}({person.pw_uid}) GroupId={grp.getgrgid(person.pw_gid).gr_name}(" in shown
        assert job(rig, sent).user == spec.user

    def test_who_is_not_slurm_user_sends_nothing_for_another(self, rig: RealRig) -> None:
        """slurmctld goes by who asks, not by whom sbatch takes itself for."""
        stranger = as_user(rig, JOB_USER)
        with pytest.raises(DriverError):
            stranger.submit_pilot(replace(rig.pilot(1), user="nobody"))
        assert rig.ctl("squeue", "-h", "-a") == ""
