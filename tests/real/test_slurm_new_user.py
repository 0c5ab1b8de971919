"""`backfill slurm` for one who has not read the manual: one clear sentence, nothing half done."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import backfill
from backfill.lab.cluster import Lab
from backfill.lab.roots import RELEASES
from backfill.ui.parser import BAD_DATA, NO, NO_PERMISSION, OK, UNAVAILABLE
from tests.real.conf_lab import conf_lab

pytestmark = [pytest.mark.real, pytest.mark.soak]
_SOURCE = Path(backfill.__file__).parents[1]
_NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
_PROLOG = "#!/bin/sh\nexit 0\n"
_LUA = """function slurm_job_submit(job_desc, part_list, uid) return slurm.SUCCESS end
function slurm_job_modify(job_desc, job_rec, part_list, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""


@dataclass
class User:
    """At the controller of a site that has hooks of its own, with a policy file just written."""

    lab: Lab

    @property
    def file(self) -> Path:
        return self.lab.shared / "policy.yaml"

    @property
    def home(self) -> Path:
        return self.lab.dir / "ours"

    @property
    def managed(self) -> Path:
        return self.lab.slurm_conf.with_name("backfill.conf")

    def writes(self, **slurm: object) -> None:
        """The smallest policy file of the manual, with this site's paths."""
        sample = yaml.safe_load((_SOURCE / "config/policy.minimal.yaml").read_text())
        sample["instances"]["addresses"] = "10.77.1.1/16"
        sample["daemon"] = {"state_dir": str(self.lab.dir / "daemon")}
        tools = {"bin_dir": str(self.lab.tools)} if self.lab.tools else {}
        hooks = {"directory": str(self.home), "log": str(self.lab.dir / "hook.log")}
        # Beside slurmctld a lab is not seen from outside: its machine's init is asked.
        script = (
            "from pathlib import Path; from backfill.lab import control; "
            f"control.ask(Path({str(self.lab.dir / 'run/ctl.sock')!r}), "
            "{'op': 'restart', 'service': 'slurmctld'})"
        )
        restart = ["env", f"PYTHONPATH={_SOURCE}", sys.executable, "-c", script]
        sample["slurm"] = {
            "conf": str(self.lab.slurm_conf),
            "registration": "conf",
            "hooks": hooks,
            **tools,
            "restart": restart,
            "health_s": 60,
            **slurm,
        }
        self.file.write_text(yaml.safe_dump(sample))

    def types(self, *argv: str, wrapped: tuple[str, ...] = ()) -> tuple[int, str]:
        """`backfill slurm …`: its exit status and all that it says; never a traceback."""
        line = [*wrapped, sys.executable, "-m", "backfill", "slurm", *argv]
        if "--config" not in argv:
            line += ["--config", str(self.file)]
        done = self.lab.run("ctl", line, env={"PYTHONPATH": str(_SOURCE)}, timeout_s=240)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr

    def refused(self, status: int, words: str, *argv: str, wrapped: tuple[str, ...] = ()) -> None:
        """It says this in one line and changes nothing."""
        before = self.site()
        code, said = self.types(*argv, wrapped=wrapped)
        assert code == status, said
        assert words in said
        assert len(said.splitlines()) == 1, said
        assert self.site() == before

    def does(self, *argv: str) -> str:
        """It succeeds, and slurmctld answers afterwards."""
        code, said = self.types(*argv)
        assert code == OK, said
        assert "bm1" in self.lab.run("ctl", ["sinfo", "-h", "-N", "-o", "%N"], check=True).stdout
        return said

    def site(self) -> dict[str, bytes]:
        """All files of Slurm's configuration directory and of our programs."""
        found = [*self.lab.slurm_conf.parent.iterdir()]
        found += [*self.home.iterdir()] if self.home.is_dir() else []
        return {str(path): path.read_bytes() for path in found if path.is_file()}


@pytest.fixture(scope="module", params=RELEASES)
def user(request: pytest.FixtureRequest) -> Iterator[User]:
    extra = ("PrologSlurmctld={dir}/prolog", "JobSubmitPlugins=all_partitions,lua")
    options = {"extra_conf": extra, "before": {"job_submit.lua": _LUA}, "program": _PROLOG}
    with conf_lab("new-user", release=request.param, **options) as lab:
        made = User(lab)
        made.writes()
        yield made


def test_wrong_paths_and_no_permission(user: User) -> None:
    """The place, what is wrong and what would help, before anything is touched."""
    user.refused(BAD_DATA, "/nowhere.yaml", "diff", "--config", "/nowhere.yaml")
    user.writes(conf="/nowhere/slurm.conf")
    for verb in ("diff", "apply"):
        user.refused(BAD_DATA, "/nowhere/slurm.conf: cannot be read (No such file", verb)
    user.refused(UNAVAILABLE, "there is no file /nowhere/slurm.conf", "hooks", "install")
    user.writes(bin_dir="/nowhere")
    user.refused(UNAVAILABLE, "cannot start /nowhere/", "apply", "--no-dry-start")
    user.refused(UNAVAILABLE, "cannot start /nowhere/", "hooks", "install")
    user.writes()
    for verb in ("apply", "hooks remove"):
        user.refused(NO_PERMISSION, "run this as root", *verb.split(), wrapped=_NOBODY)
    user.refused(NO, "there is no earlier copy to go back to", "rollback")
    user.refused(NO, "/no/copy: there is no such copy", "rollback", "--to", "/no/copy")


def test_the_file_forth_and_back(user: User) -> None:
    """Twice is once; what others change is shown, refused, and replaced only by force."""
    code, said = user.types("diff")
    assert (code, "+NodeName=vn4 " in said) == (NO, True)
    assert "Slurm has taken it" in user.does("apply")
    assert "is as the policy file wants it" in user.does("apply")
    assert user.does("diff") == "backfill.conf is as the policy file wants it\n"
    ours = user.managed.read_bytes()
    user.does("rollback")
    assert b"vn1" not in user.managed.read_bytes()
    user.does("rollback")
    assert user.managed.read_bytes() == ours
    for theirs in (ours + b"# f\xfcr Kurt\n", ours.replace(b"\n", b"\r\n")):
        user.managed.write_bytes(theirs)
        user.refused(NO, "`backfill slurm apply --force` replaces it", "apply")
        user.refused(NO, "`backfill slurm apply --force` replaces it", "hooks", "install")
        assert user.types("diff")[0] == NO
        copy = json.loads(user.does("apply", "--force", "--json"))["backup"]
        assert Path(copy).read_bytes() == theirs
        assert user.managed.read_bytes() == ours


def test_hooks_and_hands(user: User) -> None:
    """Twice is once; what was changed by hand is said; removed, the site is as it was."""
    before = user.site()
    assert user.types("hooks", "status")[0] == NO
    user.does("hooks", "install")
    installed = user.site()
    assert "the hooks are installed" in user.does("hooks", "install")
    assert user.site() == installed
    assert user.does("hooks", "status").startswith("installed")
    (user.home / "prolog_slurmctld").unlink()
    code, said = user.types("hooks", "status")
    assert (code, "there is no program" in said) == (NO, True)
    user.does("hooks", "install")
    script = user.lab.slurm_conf.with_name("job_submit.lua")
    mine = _LUA + "-- changed by hand\n"
    script.unlink()
    script.write_text(mine)
    code, said = user.types("hooks", "status")
    assert (code, "job_submit.lua is not ours any more" in said) == (NO, True)
    user.managed.write_bytes(user.managed.read_bytes() + b"# by hand\n")
    user.refused(NO, "`backfill slurm apply --force` replaces it", "hooks", "remove")
    assert "the hooks stood in the replaced file" in user.does("apply", "--force")
    user.does("hooks", "install")
    user.does("hooks", "remove")
    assert "no hook of ours is left" in user.does("hooks", "remove")
    assert user.site() == {**before, str(script): mine.encode()}
    assert user.types("hooks", "status")[0] == NO
    submitted = user.lab.run("ctl", ["sbatch", "-H", "--parsable", "--wrap", "true"])
    assert submitted.returncode == 0, submitted.stderr
