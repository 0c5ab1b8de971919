"""`backfill setup`: lines of slurm.conf, the files that it writes, and steps that survive any crash."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml

from backfill.config import load
from backfill.core.model.cluster import Job, JobState, Node, NodeBase, SlurmSettings, SlurmVersion
from backfill.drivers.libvirt.inspection import HostInspection
from backfill.drivers.slurm.conf.files import replace_file
from backfill.drivers.slurm.conf.site import Site, read_site
from backfill.ports.errors import UnreachableError
from backfill.ports.workload import ClusterObservation
from backfill.ui.cli import main
from backfill.ui.commands import setup
from backfill.ui.setup import steps
from backfill.ui.setup import survey as surveyed
from backfill.ui.setup.plan import Places, catalogue, drop_in_text, policy, texts
from backfill.ui.setup.slurm_lines import Needs, with_our_lines
from backfill.ui.setup.steps import MakeFolder, Owner, RunCommand, Step, StepError, UndoRecord, WriteFile
from backfill.ui.setup.survey import HostSurvey, Survey, mounted_in, mounts_in
from backfill.ui.setup.wishes import WishError, Wishes, image_in, suggested

NEEDS = Needs("htc", "backfill", 20, 3.5)
PLAIN = """\
ClusterName=c  # ours
SlurmctldHost=ctl
SelectType=select/linear
SlurmctldParameters=idle_on_node_suspend
ReturnToService=1
PrologEpilogTimeout=3
NodeName=bm[1-2] CPUs=2
PartitionName=batch Nodes=bm[1-2] Default=YES"""


def site(text: str) -> Site:
    """A slurm.conf that includes at most our file, as Slurm reads it."""
    return read_site(Path("slurm.conf"), Path("backfill.conf"), text)


def made_of(text: str, needs: Needs = NEEDS) -> str:
    return with_our_lines(text, site(text), needs)


# --- the files that it writes ------------------------------------------------------------------------


def _survey(**inspected: object) -> Survey:
    settings = SlurmSettings(
        SlurmVersion(22, 5), "c", 300, 2, "select/linear", raw={"ProctrackType": "proctrack/cgroup"}
    )
    seen = HostInspection(bridges=frozenset({"br0", "virbr0"}), kvm=False)
    nodes = [Node(f"bm{i}", NodeBase.IDLE, cpus=4, memory_mb=8000) for i in (1, 2)]
    hosts = [HostSurvey(node, f"qemu+tcp://{node.name}/system", inspection=seen) for node in nodes]
    dead = HostSurvey(Node("bm3", NodeBase.IDLE), "qemu+tcp://bm3/system", "bm3: it does not answer")
    conf = {"slurm.conf": PLAIN, "cgroup.conf": ""}
    return Survey(settings, ("10.0.0.1",), 6817, "slurm", site(PLAIN), (*hosts, dead), ("/srv/shared",), conf)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "image"
    made.mkdir()
    for name in ("vmlinuz", "initrd", "disk.raw"):
        (made / name).touch()
    (made / "image.json").write_text('{"cmdline": "root=/dev/vda quiet"}')
    return made


def test_what_is_not_said_is_suggested_by_the_cluster(folder: Path) -> None:
    made = suggested(_survey(), Wishes(addresses="10.0.1.1/16", image=str(folder)), None)
    assert made == Wishes(
        names="vn[1-4]",
        addresses="10.0.1.1/16",
        cpus=2,
        memory_mb=3488,
        directory="/srv/shared/backfill",
        bridge="br0",
        image=str(folder),
        emulated=True,
        user="slurm",
        hosts=("bm1", "bm2"),
        mounts=(),
        controllers=("10.0.0.1",),
    )


FSTAB = """# the machines' own
UUID=1 / ext4 defaults 0 1
10.0.0.6:/home /home nfs4 rw,hard,vers=4.1,_netdev,x-systemd.automount 0 0
fs2:/soft /opt/soft nfs nofail
10.0.0.6:/old /old nfs noauto,users 0 0
10.0.0.6:/backfill /srv/shared/backfill nfs4 rw,hard 0 0
10.0.0.6:/slurm /var/spool\\0401 nfs4 rw,hard 0 0
#10.0.0.6:/never /never nfs rw 0 0
"""


def test_guests_mount_what_somebody_says_they_may(folder: Path) -> None:
    """Nothing of this machine's fstab by itself. By its place a line there is meant, without what is about
    a machine's boot; the directory of instances and Slurm's state are never offered."""
    found = _survey()
    state = replace(found.settings, raw={"StateSaveLocation": "/var/spool 1/slurm"})
    found = replace(found, settings=state, mounts=mounts_in(FSTAB))
    wishes = Wishes("htc", "vn[1-4]", "10.0.1.1/16", 2, 512, "/srv/shared/backfill", "br0", image=str(folder))
    home, soft = "10.0.0.6:/home /home nfs4 rw,hard,vers=4.1", "fs2:/soft /opt/soft nfs defaults"
    assert suggested(found, wishes, None).mounts == ()
    asked: list[tuple[str, str]] = []
    answers = iter(("", "none", "/opt/soft /home"))

    def ask(question: str, proposal: str) -> str:
        asked.append((question, proposal))
        return next(answers)

    for chosen in ((), (), (soft, home)):
        assert suggested(found, wishes, ask).mounts == chosen
    assert asked[0] == ("NFS mounts that guests get, of /home /opt/soft, or none", "none")
    asked.clear()
    more = replace(found, mounts=("10.0.0.6:/data /data/ nfs4 rw", *found.mounts))
    data = "10.0.0.6:/data /data/ nfs4 rw"
    typed: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
        (("/home/",), (home,)),
        (("/data",), (data,)),
        (("/home,/opt/soft/, /home",), (home, soft)),
        (("None",), ()),
        (("no",), ()),
        ((home + " 0 0",), (home,)),
        ((",", "hoem", "/hoem /home", "10.0.0.6:/home", "/home"), (home,)),
    )
    for lines, expected in typed:
        answers = iter(lines)
        assert suggested(more, wishes, ask).mounts == expected
        assert next(answers, None) is None
    assert asked[-1][0].startswith(
        "10.0.0.6:/home is none of these. NFS mounts that guests get, of /data /home"
    )
    asked.clear()
    own = "10.0.0.7:/home /home nfs4 rw"
    assert suggested(found, replace(wishes, mounts=("/home/",)), ask).mounts == (home,)
    for said, mounts in (((), ()), ((own, "/opt/soft"), (own, soft))):
        assert suggested(found, replace(wishes, mounts=said), ask).mounts == mounts
    assert not asked
    for place in ("/old", "/srv/shared/backfill", "/var/spool\\0401"):
        with pytest.raises(
            WishError, match=f"--mount {re.escape(place)}: fstab has no such NFS mount here: it has /home"
        ):
            suggested(found, replace(wishes, mounts=(place,)), None)


MOUNTS = """/dev/vda / ext4 rw 0 0
fs:/a /srv nfs rw 0 0
fs:/b /srv/shared nfs4 rw 0 0
/dev/vdb /var/slurm\\0401 xfs rw 0 0
"""


@pytest.mark.parametrize("user", ["root", "slurm"])
def test_the_daemon_waits_for_the_mounts_that_it_needs(folder: Path, user: str) -> None:
    """It would make folders below an empty mount point; it tries again by itself when they are there."""
    found = _survey()
    state = replace(found.settings, raw={"StateSaveLocation": "/var/slurm 1/100%"})
    found = replace(found, settings=state, mounted=tuple(mounted_in(MOUNTS)))
    places = Places(Path("/etc/slurm/slurm.conf"))
    wishes = suggested(found, Wishes(addresses="10.0.1.1/16", image=str(folder), user=user), None)
    waits = [line for line in drop_in_text(found, wishes, places).splitlines() if "mountpoint" in line]
    # With all rights, so that it sees the machine's own mounts and not those of the locked-in unit.
    program = "ExecStartPre=+/usr/bin/mountpoint"
    assert waits == [f'{program} "/srv/shared"', f'{program} "/var/slurm 1"']
    local = replace(found, mounted=("/", "/srv/shared/backfill/images"))
    assert "mountpoint" not in drop_in_text(local, wishes, places)


def test_guests_are_closed_in_where_that_is_wished(folder: Path) -> None:
    """What makes no sense in it is left to the reader of policy files to tell."""
    found = _survey()
    wishes = suggested(found, Wishes(addresses="10.0.1.1/16", image=str(folder)), None)
    places = Places(Path("/etc/slurm/slurm.conf"))
    assert "guest_network" not in policy(found, wishes, places)["libvirt"]
    made = policy(found, replace(wishes, closed=True, also=("10.0.0.53",)), places)["libvirt"]
    assert made["guest_network"] == {"closed": True, "also": ["10.0.0.53"]}
    made = policy(found, replace(wishes, also=("10.0.0.53",)), places)["libvirt"]
    assert made["guest_network"] == {"closed": False, "also": ["10.0.0.53"]}


def test_what_nobody_can_know_is_asked_for(folder: Path) -> None:
    with pytest.raises(WishError, match="--addresses"):
        suggested(_survey(), Wishes(), None)
    asked = []

    def ask(question: str, proposal: str) -> str:
        asked.append(proposal)
        return {5: str(folder)}.get(len(asked) - 2, "10.0.1.1/16" if not proposal else "")

    made = suggested(_survey(), Wishes(), ask)
    assert made.addresses == "10.0.1.1/16"
    assert asked == ["vn[1-4]", "", "2", "3488", "/srv/shared/backfill", "br0", ""]


def test_the_files_are_taken_by_our_own_reader(folder: Path, tmp_path: Path) -> None:
    found = _survey()
    wishes = suggested(found, Wishes(addresses="10.0.1.1/16", image=str(folder)), None)
    places = Places(Path("/etc/slurm/slurm.conf"), folder=tmp_path)
    places.policy.write_text(yaml.safe_dump(policy(found, wishes, places)))
    (folder / "checksums").write_text(f"{'00' * 32}  vmlinuz\n{'5f' * 32}  disk.raw\n")
    (tmp_path / "images.yaml").write_text(yaml.safe_dump(catalogue(wishes)))
    config = load(places.policy)
    assert config.libvirt is not None
    assert config.libvirt.images["default"].sha256 == "5f" * 32
    assert [host.name for host in config.hosts] == ["bm1", "bm2"]
    assert config.libvirt.surroundings.munge_key == str(tmp_path / "munge.key")
    assert config.libvirt.images["default"].cmdline == "root=/dev/vda quiet"
    assert set(texts(found, wishes, "slurm.conf")) == {"slurm.conf", "cgroup.conf"}


def test_an_image_that_lacks_a_part_is_told(tmp_path: Path) -> None:
    with pytest.raises(WishError, match="build one: backfill image build"):
        image_in(tmp_path, False)


# --- steps -------------------------------------------------------------------------------------------

ME = Owner(os.geteuid(), os.getegid(), 0o640)


class KilledError(BaseException):
    """The process ends here."""


class World:
    """A folder with a site's file in it, and commands that are only remembered."""

    def __init__(self, root: Path) -> None:
        self.root, self.ran = root, list[str]()
        (root / "conf").write_text("old")
        (root / "conf").chmod(0o644)

    def run(self, argv: Sequence[str]) -> None:
        self.ran.append(" ".join(argv))

    def steps(self) -> list[Step]:
        conf = WriteFile(self.root / "conf", b"new", Owner(ME.uid, ME.gid, 0o644))
        return [
            MakeFolder(self.root / "made", Owner(ME.uid, ME.gid, 0o750)),
            WriteFile(self.root / "made/key", b"secret", ME),
            RunCommand(undo=("restart",)),
            conf,
            RunCommand(("restart",), needed=bool(conf.shown())),
            RunCommand(("install",), ("remove",), needed="install" not in self.ran),
        ]

    def picture(self) -> dict[str, tuple[bytes, int]]:
        files = (path for path in self.root.rglob("*") if path.is_file() and "record" not in path.parts)
        return {str(p.relative_to(self.root)): (p.read_bytes(), p.stat().st_mode & 0o777) for p in files}


def test_steps_are_done_once_and_undone(tmp_path: Path) -> None:
    world, record = World(tmp_path), UndoRecord(tmp_path / "record")
    before = world.picture()
    record.carry_out(world.steps(), world.run)
    assert world.picture() == {"conf": (b"new", 0o644), "made/key": (b"secret", 0o640)}
    assert world.ran == ["restart", "install"]
    assert [step.shown() for step in world.steps()] == [""] * 6
    record.carry_out(world.steps(), world.run)
    assert world.ran == ["restart", "install"]
    assert record.before(tmp_path / "conf") == before["conf"][0]
    assert record.before(tmp_path / "made/key") is None
    shown = "\n".join(record.would_undo())
    assert [line.partition(" (")[0] for line in shown.splitlines() if line[:1] not in "-+@"] == [
        "run remove",
        f"write {tmp_path}/conf",
        "run restart",
        f"remove {tmp_path}/made/key",
        f"remove {tmp_path}/made, if it is empty then",
    ]
    assert "\n-new\n+old" in shown
    assert world.ran == ["restart", "install"]
    assert record.undo(world.run) == []
    assert world.ran == ["restart", "install", "remove", "restart"]
    assert world.picture() == before
    assert not (tmp_path / "made").exists()
    assert not record.there


class Fuse:
    """Kills the process at its nth write or command."""

    def __init__(self, world: World, moment: int) -> None:
        self._world, self.left = world, moment

    def _burn(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KilledError

    def write(self, path: Path, text: str | bytes) -> None:
        self._burn()
        replace_file(path, text)

    def run(self, argv: Sequence[str]) -> None:
        self._burn()
        self._world.run(argv)


_MOMENTS = 12


@pytest.mark.parametrize("moment", range(1, _MOMENTS + 1))
@pytest.mark.parametrize("then", ["again", "undo"])
def test_killed_at_any_moment_nothing_is_half_done(
    then: str, moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before each write and each command: what comes then ends as if nothing had happened."""
    world, record = World(tmp_path), UndoRecord(tmp_path / "record")
    before, fuse = world.picture(), Fuse(world, moment)
    monkeypatch.setattr(steps, "replace_file", fuse.write)
    with pytest.raises(KilledError):
        record.carry_out(world.steps(), fuse.run)
    monkeypatch.undo()
    if then == "again":
        record.carry_out(world.steps(), world.run)
        assert world.picture() == {"conf": (b"new", 0o644), "made/key": (b"secret", 0o640)}
        assert list(dict.fromkeys(world.ran)) == ["restart", "install"]  # once more does no harm
    if record.there:
        assert record.undo(world.run) == []
    assert world.picture() == before


def test_every_moment_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    fuse = Fuse(world, 1000)
    monkeypatch.setattr(steps, "replace_file", fuse.write)
    UndoRecord(tmp_path / "record").carry_out(world.steps(), fuse.run)
    assert 1000 - fuse.left == _MOMENTS


def test_what_somebody_changed_since_is_left(tmp_path: Path) -> None:
    world, record = World(tmp_path), UndoRecord(tmp_path / "record")
    record.carry_out(world.steps(), world.run)
    (tmp_path / "conf").write_text("theirs")
    (tmp_path / "made/own").touch()
    shown = record.would_undo()
    assert f"{tmp_path}/conf stays: somebody has changed it since" in shown
    told = record.undo(world.run)
    kept = tmp_path / "record/conf.before"
    assert kept.read_bytes() == b"old"
    assert told == [
        f"{tmp_path}/conf stays: somebody has changed it since; the original is in {kept}",
        f"{tmp_path}/made stays: it is not empty",
    ]
    assert (tmp_path / "conf").read_text() == "theirs"


@pytest.mark.parametrize("edited", [True, False])
def test_what_a_file_that_was_left_includes_stays(tmp_path: Path, edited: bool) -> None:
    """slurmctld would not start without it."""
    conf, ours, record = tmp_path / "conf", tmp_path / "ours.conf", UndoRecord(tmp_path / "record")
    conf.write_text("old\n")
    record.carry_out([WriteFile(ours, b"ours", ME, conf), WriteFile(conf, b"old\nInclude ours.conf\n", ME)])
    if edited:
        conf.write_text("old\nInclude ours.conf\nNodeName=new\n")
    shown = record.would_undo()
    told = record.undo()
    assert ours.exists() is edited
    assert (f"remove {ours}" in shown) is not edited
    assert any(line.startswith(f"{ours} stays: ") for line in shown) is edited
    assert [line.partition(":")[0] for line in told] == [f"{conf} stays", f"{ours} stays"] * edited


@pytest.mark.parametrize(
    "line",
    [
        "Include ours.conf  # virtual nodes",
        "Include ours.con\\\nf",
        "Include sites.conf",
        "Include gone.conf",
    ],
)
def test_however_it_is_included_by_then_it_stays(tmp_path: Path, line: str) -> None:
    """An admin has written something behind the Include since, or has put it into a file of his own."""
    conf, ours, record = tmp_path / "conf", tmp_path / "ours.conf", UndoRecord(tmp_path / "record")
    conf.write_text("old\n")
    record.carry_out([WriteFile(ours, b"ours", ME, conf), WriteFile(conf, b"old\nInclude ours.conf\n", ME)])
    conf.write_text(f"old\n{line}\n")
    (tmp_path / "sites.conf").write_text("Include ours.conf\n")
    assert any(told.startswith(f"{ours} stays: ") for told in record.would_undo())
    record.undo()
    assert ours.exists()


def test_a_link_that_root_has_made_stays_a_link(tmp_path: Path) -> None:
    """What it leads to is written, and taken back."""
    behind, link, record = tmp_path / "behind", tmp_path / "link", UndoRecord(tmp_path / "record")
    behind.write_text("old")
    link.symlink_to(behind)
    os.lchown(link, 0, 0)
    record.carry_out([WriteFile(link, b"new", ME)])
    assert link.is_symlink()
    assert behind.read_text() == "new"
    assert record.undo() == []
    assert link.is_symlink()
    assert behind.read_text() == "old"


def test_what_an_admin_has_edited_is_known(tmp_path: Path) -> None:
    """Also where no run of setup has written it; what setup wrote last but one is its own."""
    path, record = tmp_path / "policy.yaml", UndoRecord(tmp_path / "record")
    assert not record.edited(path)
    path.write_text("by hand")
    assert record.edited(path)
    for content in (b"one", b"two"):
        record.carry_out([WriteFile(path, content, ME)])
        assert not record.edited(path)
    path.write_text("one")
    assert not record.edited(path)
    path.write_text("more")
    assert record.edited(path)


def test_a_secret_is_not_shown(tmp_path: Path) -> None:
    shown = WriteFile(tmp_path / "munge.key", b"abc", ME).shown()
    assert "a secret" in shown
    assert "abc" not in shown


def test_a_command_that_fails_is_told_with_its_last_words() -> None:
    with pytest.raises(StepError, match=r"ended with 3: no$"):
        steps.run_command(["sh", "-c", "echo yes; echo no >&2; exit 3"])
    with pytest.raises(StepError, match="cannot be run"):
        steps.run_command(["/nonsense"])


# --- the command -------------------------------------------------------------------------------------


def test_only_root_sets_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["setup"]) == 77
    assert "run it as root" in capsys.readouterr().err


def test_without_slurm_nothing_is_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup, "_STATE", tmp_path / "record")

    def silent(*_: object) -> Survey:
        raise UnreachableError("slurmctld", "it does not answer", "start it")

    monkeypatch.setattr(setup, "survey", silent)
    (tmp_path / "slurm.conf").touch()
    assert main(["setup", "--slurm-conf", str(tmp_path / "slurm.conf")]) == 69
    assert "nothing was changed: slurmctld: it does not answer; start it" in capsys.readouterr().err
    assert main(["setup", "--undo"]) == 1
    assert "nothing was set up here" in capsys.readouterr().err


class Cluster:
    """A slurmctld as it is after the set-up, with one job that waits."""

    state = JobState.PENDING

    def __init__(self, *_: object) -> None: ...

    def settings(self) -> SlurmSettings:
        return SlurmSettings(SlurmVersion(22, 5), "c", 0, 20, "select/cons_tres")

    def observe(self) -> ClusterObservation:
        return ClusterObservation(0.0, {}, {"1": Job("1", 1, "htc", self.state)})


def test_a_comment_in_fstab_may_be_in_any_encoding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "fstab").write_bytes("# über\n10.0.0.6:/home /home nfs rw\n".encode("latin-1"))
    (tmp_path / "slurm.conf").write_text(PLAIN)
    monkeypatch.setattr(surveyed, "_FSTAB", tmp_path / "fstab")
    monkeypatch.setattr(surveyed, "SlurmManager", Cluster)
    found = surveyed.survey(tmp_path / "slurm.conf", (), "qemu+tcp://{name}/system")
    assert found.mounts == ("10.0.0.6:/home /home nfs rw",)


def test_nothing_is_taken_back_where_nobody_knows_what_is_at_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A policy file with a mistake: the daemon that runs has kept the old one, and its nodes."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup, "_STATE", tmp_path / "record")
    monkeypatch.setattr(setup, "Places", partial(Places, folder=tmp_path))
    conf = tmp_path / "slurm.conf"
    conf.write_text("old\n")
    UndoRecord(tmp_path / "record").carry_out([WriteFile(conf, b"new\n", ME)], conf=conf)
    (tmp_path / "policy.yaml").write_text("cluster: c\nhosts: 7\n")
    assert main(["setup", "--undo"]) == 78
    assert "nothing was changed: " in capsys.readouterr().err
    assert conf.read_text() == "new\n"
    (tmp_path / "policy.yaml").unlink()
    assert main(["setup", "--undo"]) == 0
    assert conf.read_text() == "old\n"


@pytest.mark.parametrize(("edited", "status"), [("conf", 1), ("ours", 0)])
def test_what_stays_of_the_site_is_told_by_the_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, edited: str, status: int
) -> None:
    """A slurm.conf that was left needs somebody; a policy file of ours may stay."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup, "_STATE", tmp_path / "record")
    monkeypatch.setattr(setup, "_at_work", lambda: "")
    monkeypatch.setattr(setup, "_jobs_lost_by", lambda *_: "")
    conf, ours = tmp_path / "conf", tmp_path / "ours"
    conf.write_text("old\n")
    record = UndoRecord(tmp_path / "record")
    record.carry_out([WriteFile(ours, b"ours\n", ME), WriteFile(conf, b"new\n", ME)], conf=conf)
    (tmp_path / edited).write_text("edited\n")
    assert main(["setup", "--undo"]) == status
    assert (tmp_path / edited).read_text() == "edited\n"


def test_taking_back_a_select_type_waits_for_the_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Slurm would lose them: they are asked for anew, and nothing is changed while there are any."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup, "_STATE", tmp_path / "record")
    monkeypatch.setattr(setup, "_at_work", lambda: "")
    monkeypatch.setattr(setup, "SlurmManager", Cluster)
    conf = tmp_path / "slurm.conf"
    conf.write_text("SelectType=select/linear\n")
    written = [WriteFile(conf, b"SelectType=select/cons_tres\n", ME)]
    UndoRecord(tmp_path / "record").carry_out(written, conf=conf)
    argv = ["setup", "--undo"]  # which file it was is in the record
    for some in ([], ["--dry-run"], ["--dry-run", "--json"]):
        assert main([*argv, *some]) == 1
        assert "SelectType would be select/linear instead of select/cons_tres" in capsys.readouterr().err
    assert conf.read_text() == "SelectType=select/cons_tres\n"
    monkeypatch.setattr(Cluster, "state", JobState.COMPLETED)
    assert main([*argv, "--json"]) == 64
    assert main([*argv, "--dry-run"]) == 0
    assert "-SelectType=select/cons_tres\n+SelectType=select/linear" in capsys.readouterr().out
    assert main([*argv, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["refused"], told["done"], len(told["undo"])) == ("", False, 1)
    assert conf.read_text() == "SelectType=select/cons_tres\n"
    assert main(argv) == 0
    assert conf.read_text() == "SelectType=select/linear\n"
