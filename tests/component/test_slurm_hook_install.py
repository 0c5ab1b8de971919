"""Our hooks beside those of the site: installed twice is once, removed is as if never there."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model.cluster import SlurmVersion
from backfill.drivers.slurm.conf.managed import parse
from backfill.drivers.slurm.conf.transaction import RolledBackError
from backfill.drivers.slurm.hooks.build import build_hook
from backfill.drivers.slurm.hooks.install import HookPlan, Hooks
from backfill.drivers.slurm.hooks.machines_lua import MachineGate
from backfill.drivers.slurm.hooks.submit_lua import Gate
from backfill.ports.errors import RefusedError, UnreadableError
from tests.component.conf_cluster import SITE, ConfCluster, with_node
from tests.component.hook_daemon import HookDaemon

OLD, NEW = SlurmVersion(22, 5, 8), SlurmVersion(26, 5, 5)
SITE_HOOK = """#!/bin/sh
env | grep ^SLURM | sort > {out}
echo "$@" >> {out}
exit 7
"""


@pytest.fixture
def cluster(tmp_path: Path) -> ConfCluster:
    made = ConfCluster(tmp_path)
    made.transactions.apply(with_node("vn1"), dry=False)
    return made


def hooks(cluster: ConfCluster) -> Hooks:
    """A new process, as it were."""
    return Hooks(cluster.transactions, cluster.directory / "hooks")


def plan(cluster: ConfCluster, place: str = "slurmctld", endpoint: str = "") -> HookPlan:
    """What the policy file wants."""
    to = endpoint or f"unix:{cluster.directory}/none"
    home = cluster.directory
    return HookPlan(place, home / "hooks", to, 500, home / "hook.log", to, compiler=None)


def everything(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of every file of the site."""
    files = [p for p in sorted(directory.iterdir()) if p.is_file()]
    return {p.name: (p.stat().st_mode, p.read_bytes()) for p in files}


def section(cluster: ConfCluster) -> dict[str, str]:
    """Our settings in the file."""
    return dict(parse(cluster.managed.read_text()).section("hooks"))


@pytest.mark.parametrize("place", ["slurmctld", "host"])
def test_installed_twice_is_once_and_removed_is_never(cluster: ConfCluster, place: str) -> None:
    """The site's files are the same bytes as before, the nodes of ours are still there."""
    (cluster.conf.parent / "job_submit.lua").write_text("-- the site's\nreturn slurm.SUCCESS\n")
    before = everything(cluster.conf.parent)
    hooks(cluster).install(plan(cluster, place), OLD, dry=False)
    once = everything(cluster.conf.parent)
    assert once["slurm.conf"] == before["slurm.conf"]
    assert once["job_submit.site.lua"] == before["job_submit.lua"]
    again = hooks(cluster).install(plan(cluster, place), OLD, dry=False)
    assert (everything(cluster.conf.parent), again.diff) == (once, "")
    assert hooks(cluster).status().installed
    hooks(cluster).remove(dry=False)
    hooks(cluster).remove(dry=False)
    assert everything(cluster.conf.parent) == before
    assert not (cluster.directory / "hooks").exists()
    assert not hooks(cluster).status().installed


def test_each_place_has_its_settings(cluster: ConfCluster) -> None:
    """Changing the place takes the other one's settings away."""
    hooks(cluster).install(plan(cluster), OLD, dry=False)
    home = cluster.directory / "hooks"
    assert section(cluster) == {
        "PrologSlurmctld": f"{home}/prolog_slurmctld",
        "EpilogSlurmctld": f"{home}/epilog_slurmctld",
        "JobSubmitPlugins": "lua",
    }
    hooks(cluster).install(plan(cluster, "host"), OLD, dry=False)
    assert section(cluster).keys() == {"Prolog", "Epilog", "JobSubmitPlugins"}


@pytest.mark.parametrize(
    ("theirs", "merged"),
    [
        ("all_partitions", "all_partitions,lua"),
        ("lua,logging", "lua,logging"),
        ("job_submit/lua", "job_submit/lua"),
    ],
)
def test_the_sites_submit_plugins_stay(cluster: ConfCluster, theirs: str, merged: str) -> None:
    """In their order, with lua among them once."""
    cluster.conf.write_text(f"JobSubmitPlugins={theirs}\n{SITE}")
    hooks(cluster).install(plan(cluster), OLD, dry=False)
    assert section(cluster)["JobSubmitPlugins"] == merged


def test_a_setting_behind_the_include_is_refused(cluster: ConfCluster) -> None:
    """It would take ours back; nothing of ours is left behind."""
    cluster.conf.write_text(f"{SITE}PrologSlurmctld=/site/prolog\n")
    before = everything(cluster.conf.parent)
    with pytest.raises(Exception, match="line 4: sets PrologSlurmctld behind the Include"):
        hooks(cluster).install(plan(cluster), OLD, dry=False)
    assert everything(cluster.conf.parent) == before


def test_what_slurm_does_not_take_leaves_no_script(cluster: ConfCluster) -> None:
    """The transaction is rolled back, and so is job_submit.lua."""
    before = everything(cluster.conf.parent)
    cluster.tools.answer("scontrol reconfigure", err="invalid", status=1)
    with pytest.raises(RolledBackError):
        hooks(cluster).install(plan(cluster), OLD, dry=False)
    assert everything(cluster.conf.parent) == before


def programs(cluster: ConfCluster) -> set[str]:
    """Ours, and job_submit.lua."""
    home = cluster.directory / "hooks"
    there = {path.name for path in home.iterdir()} if home.exists() else set()
    return there | {path.name for path in cluster.conf.parent.glob("job_submit.lua")}


def test_programs_stay_while_nobody_knows_what_slurm_has_read(cluster: ConfCluster) -> None:
    """The reload was asked for, and slurmctld fell silent: it may call what the new lines name.

    A program of slurmctld's that is not there fails every job's start.
    """
    wanted = plan(cluster, endpoint=f"unix:{cluster.directory}/socket")

    def falls_silent() -> None:
        cluster.deaf = True

    cluster.at["look"] = falls_silent
    with pytest.raises(RolledBackError, match=r"the old file is back .* but all is not well"):
        hooks(cluster).install(wanted, OLD, dry=False)
    there = programs(cluster)
    assert {"prolog_slurmctld", "epilog_slurmctld", "arrival", "job_submit.lua"} <= there
    cluster.deaf, cluster.at = False, {}
    cluster.transactions.recover()
    assert not section(cluster)
    assert hooks(cluster).status().problems == (
        f"programs of ours are in {cluster.directory}/hooks, and slurm.conf names none of them; "
        "run `backfill slurm hooks install` or `remove`",
    )
    hooks(cluster).remove(dry=False)
    assert not programs(cluster)
    assert not hooks(cluster).status().problems


def install_in_vain(cluster: ConfCluster) -> None:
    """Slurm has read the new lines, lost a node by that, and refused to read the old ones again."""

    def reads_them() -> None:
        cluster.raw |= section(cluster)
        cluster.gone = {"bm2"}

    def refuses() -> None:
        cluster.tools.answer("scontrol reconfigure", err="invalid", status=1)

    cluster.at |= {"look": reads_them, "write back": refuses}
    with pytest.raises(RolledBackError, match=r"but all is not well: .*invalid"):
        hooks(cluster).install(plan(cluster, endpoint=f"unix:{cluster.directory}/socket"), OLD, dry=False)
    cluster.at.clear()


def test_programs_stay_that_slurm_goes_on_calling(cluster: ConfCluster) -> None:
    install_in_vain(cluster)
    assert not section(cluster)
    assert Path(cluster.raw["PrologSlurmctld"]).exists()
    assert {"epilog_slurmctld", "arrival", "job_submit.lua"} <= programs(cluster)


def test_what_an_earlier_try_has_left_goes_with_the_next_that_fails(cluster: ConfCluster) -> None:
    """The script calls a program, and both go: by now slurmctld is known to call neither."""
    install_in_vain(cluster)
    cluster.raw.clear()
    cluster.gone.clear()
    with pytest.raises(RolledBackError):
        hooks(cluster).install(plan(cluster, endpoint=f"unix:{cluster.directory}/socket"), OLD, dry=False)
    assert not programs(cluster)


def test_a_script_that_the_site_replaced_is_the_sites(cluster: ConfCluster) -> None:
    """Status tells, another install merges the new one, removal leaves it alone."""
    script = cluster.conf.parent / "job_submit.lua"
    script.write_text("-- first\n")
    hooks(cluster).install(plan(cluster), OLD, dry=False)
    script.unlink()
    script.write_text("-- second\n")
    assert "not ours any more" in hooks(cluster).status().problems[0]
    hooks(cluster).install(plan(cluster), OLD, dry=False)
    assert hooks(cluster).status().problems == ()
    hooks(cluster).remove(dry=False)
    assert script.read_text() == "-- second\n"


@pytest.mark.parametrize("text", ["", '{"PrologSlurmctld": "/si', "[]", "\xff"])
def test_a_torn_record_of_the_site_is_one_sentence(cluster: ConfCluster, text: str) -> None:
    """What the site had cannot be compared, until another install writes it anew; removal needs no record."""
    hooks(cluster).install(plan(cluster), OLD, dry=False)
    record = cluster.directory / "hooks/installed.json"
    record.write_text(text, encoding="latin-1")
    with pytest.raises(UnreadableError) as caught:
        hooks(cluster).status()
    assert str(caught.value) == (
        f"{record}: this record of what the site had set is damaged; run `backfill slurm hooks install` again"
    )
    hooks(cluster).install(plan(cluster), OLD, dry=False)
    assert hooks(cluster).status().problems == ()
    record.write_text(text, encoding="latin-1")
    hooks(cluster).remove(dry=False)
    assert not record.exists()


def test_what_lies_over_our_script_stays_and_that_is_said(cluster: ConfCluster) -> None:
    """Nobody finds his earlier script by chance under another name."""
    script = cluster.conf.parent / "job_submit.lua"
    script.write_text("-- first\n")
    hooks(cluster).install(plan(cluster), OLD, dry=False)
    script.unlink()
    script.write_text("-- second\n")
    (told,) = hooks(cluster).remove(dry=False).notes
    assert told == (
        f"{script} is not ours any more and stays; what the site had before is kept as job_submit.site.lua"
    )
    assert script.read_text() == "-- second\n"
    assert not (cluster.directory / "hooks").exists()


def test_what_cannot_be_installed_leaves_no_program(cluster: ConfCluster) -> None:
    """Nor any script: without the Include line nothing of ours is used."""
    cluster.conf.write_text(SITE.replace("Include backfill.conf\n", ""))
    before = everything(cluster.conf.parent)
    with pytest.raises(RefusedError, match="add the line 'Include backfill"):
        hooks(cluster).install(plan(cluster), OLD, dry=False)
    assert everything(cluster.conf.parent) == before
    assert not (cluster.directory / "hooks").exists()


@pytest.mark.parametrize("theirs", ["-- the site's\nreturn slurm.SUCCESS\n", ""])
def test_a_policy_without_rules_for_jobs_takes_the_script_away(cluster: ConfCluster, theirs: str) -> None:
    """Slurm would go on asking it where the site itself wants Lua, and turn away whom nobody means to."""
    cluster.conf.write_text(f"JobSubmitPlugins=lua\n{SITE}")
    script = cluster.conf.parent / "job_submit.lua"
    if theirs:
        script.write_text(theirs)
    before = everything(cluster.conf.parent)
    gated = replace(plan(cluster), gates=(Gate("el9", ("anna",), (), "may not"),))
    hooks(cluster).install(gated, OLD, dry=False)
    assert "el9" in script.read_text()
    bare = replace(plan(cluster), arrival_endpoint="")
    done = hooks(cluster).install(bare, OLD, dry=False)
    assert done.diff
    assert {**everything(cluster.conf.parent), "backfill.conf": 0} == {**before, "backfill.conf": 0}
    assert hooks(cluster).status().problems == ()


def test_a_script_of_another_version_or_policy_is_told(cluster: ConfCluster) -> None:
    """It would turn away the wrong users, or know nothing of a mend."""
    script = cluster.conf.parent / "job_submit.lua"
    gate = Gate("big", ("ada",), (), "may not have big")
    gated = replace(plan(cluster), gates=(gate,))
    hooks(cluster).install(gated, OLD, dry=False)
    assert hooks(cluster).stale(gated, OLD) == ""
    assert "of another version" in hooks(cluster).stale(plan(cluster), OLD)
    script.write_text(script.read_text().replace("local function refusal", "local function  refusal"))
    assert "of another version" in hooks(cluster).stale(gated, OLD)
    hooks(cluster).install(gated, OLD, dry=False)
    assert hooks(cluster).stale(gated, OLD) == ""
    script.unlink()
    assert hooks(cluster).stale(gated, OLD) == ""  # whose it is, is told otherwise


def test_a_change_of_the_sites_hook_is_told(cluster: ConfCluster) -> None:
    """Ours runs what the site had when it was built."""
    cluster.conf.write_text(f"PrologSlurmctld=/site/a\n{SITE}")
    hooks(cluster).install(plan(cluster), OLD, dry=False)
    cluster.conf.write_text(f"PrologSlurmctld=/site/b\n{SITE}")
    (problem,) = hooks(cluster).status().problems
    assert "PrologSlurmctld is /site/b now and was /site/a" in problem


def runs(program: Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Call a program as Slurm does."""
    context = {"SLURM_SCRIPT_CONTEXT": "prolog_slurmctld", "SLURM_JOB_ID": "12"}
    return subprocess.run(
        [program, "one", "two"], env=context | env, capture_output=True, timeout=20, check=False
    )


def site_hook(cluster: ConfCluster, name: str = "prolog") -> Path:
    """A program of the site that notes what it was given and fails."""
    path = cluster.directory / name
    path.write_text(SITE_HOOK.format(out=cluster.directory / f"{name}.out"))
    path.chmod(0o755)
    return path


def test_an_old_release_runs_the_sites_hook_after_ours(cluster: ConfCluster) -> None:
    """With its own environment, arguments and exit status, although no daemon answers."""
    theirs = site_hook(cluster)
    cluster.conf.write_text(f"PrologSlurmctld={theirs}\n{SITE}")
    hooks(cluster).install(plan(cluster), OLD, dry=False)
    done = runs(cluster.directory / "hooks/prolog_slurmctld", SLURM_JOB_NAME="ä =b")
    assert done.returncode == 7
    said = (cluster.directory / "prolog.out").read_text()
    assert said.splitlines() == [
        "SLURM_JOB_ID=12",
        "SLURM_JOB_NAME=ä =b",
        "SLURM_SCRIPT_CONTEXT=prolog_slurmctld",
        "one two",
    ]


def test_a_pattern_of_hooks_is_run_in_order_until_one_fails(cluster: ConfCluster) -> None:
    """As Slurm itself does with a pattern: the last name first."""
    for name in ("p1", "p2"):
        site_hook(cluster, name)
    cluster.conf.write_text(f"Prolog={cluster.directory}/p?\n{SITE}")
    hooks(cluster).install(plan(cluster, "host"), OLD, dry=False)
    for first, *others in (("p2", "p1"), ("p1",)):
        assert runs(cluster.directory / "hooks/prolog").returncode == 7
        assert (cluster.directory / f"{first}.out").exists()
        assert not any((cluster.directory / f"{name}.out").exists() for name in others)
        (cluster.directory / first).unlink()
    assert runs(cluster.directory / "hooks/prolog").returncode == 127  # nothing matches: Slurm fails, too


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("theirs", ["hooks/prolog", "linked", "link[e]d"])
def test_a_line_of_the_site_that_names_our_program_is_refused(
    cluster: ConfCluster, version: SlurmVersion, theirs: str
) -> None:
    """It would run itself for ever, or twice."""
    hooks(cluster).install(plan(cluster, "host"), version, dry=False)
    (cluster.directory / "linked").symlink_to(cluster.directory / "hooks/prolog")
    cluster.conf.write_text(f"Prolog={cluster.directory}/{theirs}\n{SITE}")
    before = cluster.managed.read_bytes(), (cluster.directory / "hooks/prolog").read_bytes()
    with pytest.raises(RefusedError, match="line 1: Prolog names a hook of backfill's"):
        hooks(cluster).install(plan(cluster, "host"), version, dry=False)
    assert (cluster.managed.read_bytes(), (cluster.directory / "hooks/prolog").read_bytes()) == before


def test_so_is_one_that_somebody_has_written_beforehand(cluster: ConfCluster) -> None:
    """There is no such program yet."""
    cluster.conf.write_text(f"EpilogSlurmctld={cluster.directory}/hooks/epilog_slurmctld\n{SITE}")
    with pytest.raises(RefusedError, match="line 1: EpilogSlurmctld names a hook of backfill's"):
        hooks(cluster).install(plan(cluster), OLD, dry=False)
    assert not (cluster.directory / "hooks").exists()


@pytest.mark.parametrize("power_first", [True, False])
def test_slurm_user_is_let_in_whatever_our_umask(cluster: ConfCluster, power_first: bool) -> None:
    """Root's is 077 in many places; a hook that slurmctld cannot start fails every job of the site."""
    home = cluster.directory / "local/lib/hooks"
    ours = Hooks(cluster.transactions, home)
    before = os.umask(0o077)
    try:
        if power_first:
            ours.build_power(plan(cluster))
        ours.install(plan(cluster), OLD, dry=False)
    finally:
        os.umask(before)
    for place in (home, home.parent, home.parent.parent, home / "prolog_slurmctld", home / "arrival"):
        assert place.stat().st_mode & 0o777 == 0o755


def test_a_directory_that_slurm_user_may_not_enter_is_refused(cluster: ConfCluster) -> None:
    """Somebody has closed it, or one above it: slurm.conf must not name what is in there."""
    cluster.raw = {"SlurmUser": "nobody(65534)"}
    if os.geteuid() != 0:  # nobody else can become SlurmUser
        return
    before = cluster.managed.read_bytes()
    with pytest.raises(RefusedError, match=r"SlurmUser may not start .*prolog_slurmctld.*; open .*chmod o.x"):
        hooks(cluster).install(plan(cluster), OLD, dry=False)  # pytest's directories are root's
    assert cluster.managed.read_bytes() == before
    assert not (cluster.directory / "hooks").exists()


def test_a_new_release_calls_the_sites_hook_itself(cluster: ConfCluster) -> None:
    """Ours must not run it a second time."""
    cluster.conf.write_text(f"PrologSlurmctld={site_hook(cluster)}\n{SITE}")
    hooks(cluster).install(plan(cluster), NEW, dry=False)
    assert runs(cluster.directory / "hooks/prolog_slurmctld").returncode == 0
    assert not (cluster.directory / "prolog.out").exists()


@pytest.mark.parametrize("compiler", ["gcc", None])
def test_a_hook_with_a_follower(tmp_path: Path, compiler: str | None) -> None:
    """Both forms: asked first, then the site's own in its place; a missing one is the site's."""
    follower = tmp_path / "site"
    follower.write_text("#!/bin/sh\ntrap - TERM ALRM\necho $0 $*; exit 3\n")
    follower.chmod(0o755)
    with HookDaemon(tmp_path / "sock") as daemon:
        hook = build_hook(tmp_path / "hook", daemon.endpoint, 5000, None, compiler, follows=str(follower))
        done = runs(hook)
        assert (done.returncode, done.stdout) == (3, f"{follower} one two\n".encode())
        assert daemon.requests[0].startswith("backfill1 allocated job=12 ")
        follower.unlink()
        assert runs(hook).returncode == 127


@pytest.mark.parametrize("compiler", ["gcc", None])
def test_an_arrival_pokes_and_never_complains(tmp_path: Path, compiler: str | None) -> None:
    """No job waits for it: a word to a living daemon, silence about a dead one."""
    log = tmp_path / "log"
    context = {"SLURM_SCRIPT_CONTEXT": "arrival", "SLURM_JOB_ID": "5"}
    with HookDaemon(tmp_path / "sock") as daemon:
        hook = build_hook(tmp_path / "hook", daemon.endpoint, 5000, log, compiler)
        assert runs(hook, **context).returncode == 0
        until(lambda: bool(daemon.requests))
        assert daemon.requests[0].startswith("backfill1 arrived job=0 nodes= ")
    assert runs(hook, **context).returncode == 0
    assert not log.exists()


@pytest.mark.parametrize(
    ("slurm_user", "uids"), [("slurm(64030)", "[0] = true, [64030] = true"), ("", "[0] = true")]
)
def test_the_script_knows_slurm_user(
    cluster: ConfCluster, monkeypatch: pytest.MonkeyPatch, slurm_user: str, uids: str
) -> None:
    """A daemon that runs as SlurmUser points jobs at their machines: slurmctld asks the script of it, too."""
    cluster.raw = {"SlurmUser": slurm_user}
    monkeypatch.setattr(os, "geteuid", lambda: 1)  # nobody else can try whether he may start the programs
    asking = replace(plan(cluster), machines=MachineGate("own-vm"))
    hooks(cluster).install(asking, OLD, dry=False)
    script = (cluster.conf.parent / "job_submit.lua").read_text()
    assert f"trusted = {{ {uids} }}" in script
    assert "if own.trusted[uid] then return end" in script


def test_the_power_program_outlives_the_hooks(cluster: ConfCluster) -> None:
    """While CLOUD nodes need it; it pokes the daemon and always succeeds."""
    home = cluster.directory / "hooks"
    hooks(cluster).build_power(plan(cluster))
    pair = ("ResumeProgram", str(home / "power"))
    cluster.transactions.apply(lambda m: m.with_section("cloud", (pair,)), dry=False)
    hooks(cluster).install(plan(cluster), OLD, dry=False)
    hooks(cluster).remove(dry=False)
    assert runs(home / "power").returncode == 0
    cluster.transactions.apply(lambda m: m.with_section("cloud", ()), dry=False)
    hooks(cluster).remove(dry=False)
    assert not home.exists()


def until(holds: Callable[[], bool]) -> None:
    """Let the daemon's thread catch up."""
    deadline_s = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)
