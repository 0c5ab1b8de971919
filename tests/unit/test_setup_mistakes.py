"""`backfill setup`: what cannot be is told in one sentence, by the option with which it was said."""

from __future__ import annotations

import json
import os
import pwd
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

import backfill
from backfill.core.model.cluster import Node, NodeBase, SlurmSettings, SlurmVersion
from backfill.drivers.libvirt.inspection import HostInspection
from backfill.drivers.slurm.conf.dry import DryVerdict
from backfill.drivers.slurm.conf.site import read_site
from backfill.ui.cli import main
from backfill.ui.commands import setup
from backfill.ui.setup import wishes
from backfill.ui.setup.plan import Places, steps
from backfill.ui.setup.steps import Owner, Step, UndoRecord, WriteFile
from backfill.ui.setup.survey import HostSurvey, Survey, address_of

_ME = pwd.getpwuid(os.geteuid()).pw_name
_SOUND = {"--addresses": "10.0.1.1/16", "--user": _ME, "--directory": "/srv/shared/backfill"}


def _survey() -> Survey:
    settings = SlurmSettings(SlurmVersion(22, 5), "c", 300, 2, "select/linear")
    seen = HostInspection(bridges=frozenset({"br0"}), kvm=False)
    nodes = [Node(f"bm{i}", NodeBase.IDLE, cpus=4, memory_mb=8000) for i in (1, 2)]
    hosts = [HostSurvey(node, f"qemu+tcp://{node.name}/system", inspection=seen) for node in nodes]
    text = "NodeName=bm[1-2] CPUs=4\nPartitionName=batch Nodes=bm[1-2] Default=YES\n"
    site = read_site(Path("slurm.conf"), Path("backfill.conf"), text)
    texts = {"slurm.conf": text}
    return Survey(settings, ("10.0.0.1",), 6817, "slurm", site, tuple(hosts), ("/srv/shared",), texts)


Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Ask:
    """Say `backfill setup` with these options and those of `_SOUND`; the status, and what was said."""
    image = tmp_path / "image"
    image.mkdir()
    for name in ("vmlinuz", "initrd", "disk.raw"):
        (image / name).touch()
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=c\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup, "_STATE", tmp_path / "record")
    monkeypatch.setattr(setup, "survey", lambda *_: _survey())

    def run(options: dict[str, str], *more: str) -> tuple[int, str]:
        said = {**_SOUND, "--image": str(image), "--slurm-conf": str(conf), **options}
        words = [word for option, value in said.items() if value for word in (option, value)]
        status = main(["setup", "--dry-run", *words, *more])
        said_then = capsys.readouterr()
        return status, said_then.err if status else said_then.out

    return run


def test_a_user_who_cannot_begin_the_program_is_told(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pip installs it with umask 077; root alone can try that."""
    if os.getuid() != 0:
        return
    closed = tmp_path / "opt/python"
    closed.parent.mkdir(mode=0o700)
    closed.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(closed))
    monkeypatch.setattr(sys, "prefix", str(closed.parent))
    status, said = ask({"--user": "nobody"})
    assert status == 64
    assert f"--user: nobody cannot begin backfill as it is installed in {closed.parent} (" in said
    assert f"; open it to others (chmod -R go+rX {closed.parent}), and the directories above it" in said
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    _, said = ask({"--user": "nobody"})
    package = Path(backfill.__file__).parent
    assert f"(chmod -R go+rX {package})" in said  # not all of /usr


_TOLD = (
    (
        "--uri",
        "a://{host}/b",
        "--uri a://{host}/b: in braces it has {name} or {address} only, as in qemu+tcp:",
    ),
    ("--uri", "a://{", "--uri a://{: in braces it has {name} or {address} only, as in qemu+tcp:"),
    ("--restart", 'a "b', '--restart a "b: No closing quotation; write it as in a shell'),
    ("--restart", " ", "--restart is empty; name the command that starts slurmctld anew"),
    ("--slurm-conf", "/nowhere", "there is no file /nowhere; say where slurm.conf is by --slurm-conf"),
    ("--user", "no.such", "there is no user no.such here; create it, or name the daemon's user by --user"),
    ("--names", "vn[1-", "--names vn[1-: hostlist 'vn[1-': brackets do not match; write it like vn[1-8]"),
    ("--names", "bm[1-1]", "--names has bm1, which is the node of host bm1; give instances names of their"),
    ("--hosts", "bm[1-4]", "--hosts: Slurm has no node bm3, bm4 in slurm.conf; `sinfo -N` lists its nodes"),
    ("--cpus", "5", "--cpus 5 is more than the largest host has; name at most 4"),
    ("--memory-mb", "8001", "--memory-mb 8001 is more than the largest host has; name at most 8000"),
    ("--cpus", "-1", "--cpus is '-1', which is negative; write a whole number"),
    ("--bridge", "br1", "host bm1 has no bridge br1: it has br0; name it by --bridge, or make it there"),
    ("--addresses", "here", "--addresses is 'here', which is no IP address; write the first address"),
    (
        "--addresses",
        "10.9.1.1/24",
        "is not in the guests' network 10.9.1.0/24; name addresses of its network",
    ),
    ("--addresses", "10.0.0.1/16", "--addresses gives 10.0.0.1 to vn1, but it belongs to"),
    ("--addresses", "", "Say it by --addresses"),
    (
        "--controller",
        "127.0.1.1",
        "the controller's address 127.0.1.1 means, inside a guest, the guest itself; name",
    ),
    (
        "--controller",
        "ctl",
        "the controller ctl has no address that this machine knows; name it by --controller",
    ),
    ("--gateway", "there", "--gateway is 'there', which is not an IP address; write an IP address"),
    ("--directory", "here", "--directory is 'here', which is not an absolute path; write an absolute path"),
    ("--mount", "home", "--mount is 'home', which is not a line of fstab; write four words as in fstab"),
    ("--also", "them", "--also is 'them', which is not an IPv4 address or network; write an IPv4"),
    ("--low", "a b", "--low is 'a b', which is not a name; write a name of letters"),
    ("--image", "/nowhere", "/nowhere has no disk"),
)


@pytest.mark.parametrize(("option", "value", "told"), _TOLD)
def test_it_is_told_by_the_option(ask: Ask, option: str, value: str, told: str) -> None:
    status, said = ask({option: value})
    assert told in said
    assert status == (65 if option == "--slurm-conf" else 64)
    assert len(said.splitlines()) == 1


def test_each_mistake_has_a_line_of_its_own(ask: Ask) -> None:
    status, said = ask({"--low": "a b", "--mount": "home"})
    assert (status, len(said.splitlines())) == (64, 2)


def test_hosts_that_do_not_answer_are_told_line_by_line(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _survey()
    dead = tuple(replace(host, problem=f"{host.node.name}: no", inspection=None) for host in found.hosts)
    monkeypatch.setattr(setup, "survey", lambda *_: replace(found, hosts=dead))
    status, said = ask({})
    assert status == 64
    assert said.splitlines() == [
        "backfill: bm1: no",
        "backfill: bm2: no",
        "backfill: no host answers: name their libvirt by --uri, or other hosts by --hosts",
    ]


def test_hosts_that_slurm_would_switch_off_are_refused(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances run on hosts that look idle, and so would end with the power."""
    found = _survey()
    raw = {
        "SuspendProgram": "/off",
        "ResumeProgram": "/on",
        "SuspendTime": "600 sec",
        "SuspendExcNodes": "bm1",
    }
    saving = replace(found, settings=replace(found.settings, raw=raw))
    monkeypatch.setattr(setup, "survey", lambda *_: saving)
    status, said = ask({})
    assert status == 64
    assert "add bm2 to SuspendExcNodes in slurm.conf, or name other hosts by --hosts" in said


def test_a_change_at_which_slurm_loses_jobs_is_refused(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another SelectType: the jobs of the site are not ours to end."""
    there = replace(_survey(), jobs=3)
    monkeypatch.setattr(setup, "survey", lambda *_: there)
    status, said = ask({"--names": "vn[1-2]"})
    assert status == 1
    assert "nothing was changed: SelectType would be select/cons_tres instead of select/linear" in said
    assert "3 jobs run or wait" in said
    alike = replace(there.settings, select_type="select/cons_res")
    monkeypatch.setattr(setup, "survey", lambda *_: replace(there, settings=alike))
    assert "jobs" not in ask({"--names": "vn[1-2]"})[1]


@pytest.fixture
def etc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the policy file would be, on a machine without a slurmctld."""
    (tmp_path / "etc").mkdir()
    places = partial(Places, folder=tmp_path / "etc", unit=tmp_path / "unit/setup.conf")
    monkeypatch.setattr(setup, "Places", places)
    monkeypatch.setattr(setup, "dry_start", lambda *_: DryVerdict(False, "there is none"))
    return tmp_path / "etc"


def test_a_policy_file_that_somebody_has_edited_stays(ask: Ask, etc: Path) -> None:
    """What this run would write there is shown, and written only where nobody has been."""
    options = {"--names": "vn[1-2]", "--user": "root"}
    status, plan = ask(options)
    assert status == 0
    assert f"write {etc}/policy.yaml" in plan.replace("would write", "")
    (etc / "policy.yaml").write_text("cluster: c # mine\n")
    status, plan = ask(options)
    assert status == 0
    told = f"{etc}/policy.yaml was not written by setup, or was edited since, and is kept; setup would write"
    assert f"{told} {etc}/policy.yaml" in plan
    assert "\n-cluster: c # mine\n" in plan
    assert f"\nwrite {etc}/images.yaml" in plan
    assert f"\nwrite {etc}/policy.yaml" not in plan


def test_what_could_not_be_tried_is_said(
    ask: Ask, etc: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan is shown, and that no slurmctld has read it."""
    told: list[str] = []
    monkeypatch.setattr(setup, "say", told.append)
    assert ask({"--names": "vn[1-2]", "--user": "root"})[0] == 0
    assert told == ["slurm.conf could not be tested with a slurmctld without network: there is none"]


def test_json_shows_and_does_nothing(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads it shall not find the plan carried out, and other words behind it."""
    assert main(["setup", "--json", "--yes"]) == 64
    assert "--json only shows the plan; add --dry-run" in capsys.readouterr().err


def test_a_name_of_the_loopback_is_no_controller_for_guests(
    ask: Ask, etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Debian gives one to a machine's own name: this machine's address towards the guests is taken."""
    there = replace(_survey(), controllers=("127.0.1.1",))
    monkeypatch.setattr(setup, "survey", lambda *_: there)
    asked: list[str] = []

    def towards(address: str) -> str:
        asked.append(address)
        return "10.0.0.9"

    monkeypatch.setattr(wishes, "address_towards", towards)
    status, plan = ask({"--names": "vn[1-2]", "--user": "root"})
    assert (status, asked) == (0, ["10.0.1.1"])
    assert "+    controller: 10.0.0.9\n+    conf_server: 10.0.0.9:6817\n" in plan
    monkeypatch.setattr(wishes, "address_towards", lambda _: "")
    assert "name the address at which guests reach slurmctld by --controller" in ask({"--user": "root"})[1]


def test_only_this_machines_own_address_is_put_in_place_of_another(
    ask: Ask, etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For one controller at most: a name that nobody knows here is another machine's, and is told."""
    monkeypatch.setattr(wishes, "address_towards", lambda _: "10.0.0.1")
    said = {"--names": "vn[1-2]", "--user": "root"}
    unknown = "the controller ctl2 has no address that this machine knows; name it by --controller"
    itself = "the controller's address 127.0.1.2 means, inside a guest, the guest itself; name"
    for controllers, words in (
        (("10.0.0.1", "ctl2"), unknown),
        (("ctl2", "10.0.0.1"), unknown),
        (("127.0.1.1", "ctl2"), unknown),
        (("127.0.1.1", "127.0.1.2"), itself),
    ):
        monkeypatch.setattr(
            setup, "survey", lambda *_, known=controllers: replace(_survey(), controllers=known)
        )
        status, told = ask(said)
        assert (status, words in told) == (64, True)
    both = replace(_survey(), controllers=("10.0.0.2", "127.0.1.1"))
    monkeypatch.setattr(setup, "survey", lambda *_: both)
    assert "+    conf_server: 10.0.0.2:6817,10.0.0.1:6817\n" in ask(said)[1]


@pytest.mark.parametrize(
    ("host", "asked", "known", "address"),
    [
        ("ctl1", "ctl1", ["fd00::1", "10.0.0.1"], "10.0.0.1"),
        ("ctl2(ctl2-ib)", "ctl2-ib", ["fd00::2"], "fd00::2"),
        ("ctl3", "ctl3", [], "ctl3"),
    ],
)
def test_the_address_of_a_controller_by_its_name(
    monkeypatch: pytest.MonkeyPatch, host: str, asked: str, known: list[str], address: str
) -> None:
    """Of IPv4 where it has one; a name that nobody knows here stays a name."""

    def resolved(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        assert name == asked
        if not known:
            raise OSError("unknown")
        return [(0, 0, 0, "", (one, 0)) for one in known]

    monkeypatch.setattr("socket.getaddrinfo", resolved)
    assert address_of(host) == address


def test_guests_are_told_of_every_controller(ask: Ask, etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The primary first; who names some by hand names all."""
    there = replace(_survey(), controllers=("10.0.0.1", "10.0.0.2"))
    monkeypatch.setattr(setup, "survey", lambda *_: there)
    said = {"--names": "vn[1-2]", "--user": "root"}
    assert "+    controller: 10.0.0.1\n+    conf_server: 10.0.0.1:6817,10.0.0.2:6817\n" in ask(said)[1]
    assert (
        "+    conf_server: 10.0.0.3:6817,10.0.0.4:6817\n"
        in ask(said | {"--controller": "10.0.0.3,10.0.0.4"})[1]
    )
    twice = said | {"--controller": "10.0.0.3, 10.0.0.4,10.0.0.3"}
    assert "+    conf_server: 10.0.0.3:6817,10.0.0.4:6817\n" in ask(twice)[1]
    six = said | {"--controller": "10.0.0.3,fd00::1", "--gateway": "10.0.0.9"}
    assert "+    conf_server: 10.0.0.3:6817,[fd00::1]:6817\n" in ask(six)[1]
    for backup, words in (
        ("ctl2", "the controller ctl2 has no address that this machine knows; name it by --controller"),
        ("127.0.0.1", "the controller's address 127.0.0.1 means, inside a guest, the guest itself"),
        ("192.168.0.2", "the controller 192.168.0.2 is not in the guests' network"),
    ):
        assert words in ask(said | {"--controller": f"10.0.0.1,{backup}"})[1]


def test_what_this_machine_mounts_is_told_and_not_given_to_guests(
    ask: Ask, etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until somebody says so, by its place or in a line; or that guests get none."""
    home = "10.0.0.6:/home /home nfs4 rw"
    monkeypatch.setattr(setup, "survey", lambda *_: replace(_survey(), mounts=(home,)))
    said, told = (
        {"--names": "vn[1-2]", "--user": "root"},
        "guests get none of this machine's NFS mounts (/home)",
    )
    shown = ask(said)[1]
    assert f"{told}: if jobs need one, such as their homes, say --mount /home, otherwise --no-mounts" in shown
    assert "mounts:" not in shown
    assert json.loads(ask(said, "--json")[1])["not_mounted"] == ["/home"]
    shown = ask(said | {"--mount": "/home"})[1]
    assert f"+    mounts:\n+    - {home}\n" in shown
    assert told not in shown
    assert told not in ask(said, "--no-mounts")[1]


@pytest.fixture
def again(ask: Ask, etc: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    """The same, after a first run with `--mount /home` has written the policy file."""
    there = replace(_survey(), mounts=("10.0.0.6:/home /home nfs4 rw", "10.0.0.6:/soft /soft nfs4 rw"))
    monkeypatch.setattr(setup, "survey", lambda *_: there)
    written: list[WriteFile] = []

    def kept(*given: Any) -> Sequence[Step]:
        found = steps(*given)
        written.extend(step for step in found if isinstance(step, WriteFile) and step.path.parent == etc)
        return found

    monkeypatch.setattr(setup, "steps", kept)
    said = {"--names": "vn[1-2]", "--user": "root"}
    assert ask(said | {"--mount": "/home"})[0] == 0
    me = Owner(os.geteuid(), os.getegid(), 0o640)
    UndoRecord(tmp_path / "record").carry_out([replace(file, owner=me) for file in written])
    return lambda options, *more: ask(said | options, *more)


def test_a_second_run_keeps_the_mounts(again: Ask, etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the file that setup itself wrote, with `--yes` or Enter; only who says so takes them away."""
    policy = f"write {etc}/policy.yaml"
    for more in ((), ("--yes",)):
        status, plan = again({}, *more)
        assert status == 0
        assert policy not in plan
        assert "guests get none" not in plan
    assert "\n-    mounts:\n" in again({}, "--no-mounts")[1]
    assert "\n+    - 10.0.0.6:/soft /soft nfs4 rw\n" in again({"--mount": "/soft"})[1]
    enough = {"--cpus": "2", "--memory-mb": "3488", "--bridge": "br0"}
    for typed, changed in (
        ("\n", ""),
        ("/home /soft\n", "\n+    - 10.0.0.6:/soft"),
        ("none\n", "\n-    mounts:"),
    ):
        monkeypatch.setattr("sys.stdin", _Terminal(typed))
        plan = again(enough)[1]
        assert "of /home /soft, or none [/home]: " in plan
        assert changed in plan
        assert (policy in plan) is bool(changed)
    (etc / "policy.yaml").write_text((etc / "policy.yaml").read_text() + "# mine\n")
    monkeypatch.setattr("sys.stdin", _Terminal(""))
    status, plan = again(enough)
    assert (status, "NFS mounts" in plan, "mounts:" in plan) == (0, False, False)


_NOT_UTF8 = b"/h\xe9".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--mount", _NOT_UTF8),
        ("--mount", f"nfs:{_NOT_UTF8} /home nfs4 rw"),
        ("--directory", f"{_NOT_UTF8}/x"),
        ("--directory", ""),
        ("--image", _NOT_UTF8),
        ("--restart", f"restart {_NOT_UTF8}"),
        ("--uri", f"qemu+unix://{_NOT_UTF8}"),
    ],
)
def test_a_name_that_is_not_utf8_is_refused(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, option: str, value: str
) -> None:
    """As a mount of this machine may be called, which is also suggested where nobody says another one."""
    seen = replace(_survey(), shared=(_NOT_UTF8,), mounted=(_NOT_UTF8,))
    seen = replace(seen, mounts=(f"nfs:{_NOT_UTF8} {_NOT_UTF8} nfs4 rw",))
    monkeypatch.setattr(setup, "survey", lambda *_: seen)
    status, said = ask({"--names": "vn[1-2]", option: value})
    assert status == 64
    assert said.startswith(f"backfill: {option} ")
    assert "/h\\udce9" in said
    assert "is not UTF-8, as the files of settings are; rename it, or name another one" in said


def test_an_answer_that_is_not_utf8_is_refused(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = TextIOWrapper(BytesIO(b"/h\xe9\n"), encoding="utf-8")
    monkeypatch.setattr(typed, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", typed)
    status, said = ask({"--names": "vn[1-2]"})
    assert (status, "the answer is not UTF-8; nothing was changed" in said) == (64, True)


class _Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("", "there was no answer; nothing was changed"),
        ("many\n" + "\n" * 9, "--cpus many: that is no whole number"),
    ],
)
def test_answers_that_are_none(ask: Ask, monkeypatch: pytest.MonkeyPatch, typed: str, told: str) -> None:
    """The end of what is typed, and a word where a number is asked for."""
    monkeypatch.setattr("sys.stdin", _Terminal(typed))
    status, said = ask({"--names": "vn[1-2]"})
    assert told in said
    assert status == 64
