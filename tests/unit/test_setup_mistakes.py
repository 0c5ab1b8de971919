"""`backfill setup`: what cannot be is told in one sentence, by the option with which it was said."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from backfill.core.model.cluster import Node, NodeBase, SlurmSettings, SlurmVersion
from backfill.drivers.libvirt.inspection import HostInspection
from backfill.ui.cli import main
from backfill.ui.commands import setup
from backfill.ui.setup.survey import HostSurvey, Survey

_ME = pwd.getpwuid(os.geteuid()).pw_name
_SOUND = {"--addresses": "10.0.1.1/16", "--user": _ME, "--directory": "/srv/shared/backfill"}


def _survey() -> Survey:
    settings = SlurmSettings(SlurmVersion(22, 5), "c", 300, 2, "select/linear")
    seen = HostInspection(bridges=frozenset({"br0"}), kvm=False)
    nodes = [Node(f"bm{i}", NodeBase.IDLE, cpus=4, memory_mb=8000) for i in (1, 2)]
    hosts = [HostSurvey(node, f"qemu+tcp://{node.name}/system", inspection=seen) for node in nodes]
    text = "NodeName=bm[1-2] CPUs=4\nPartitionName=batch Nodes=bm[1-2] Default=YES\n"
    return Survey(settings, "10.0.0.1", 6817, "slurm", tuple(hosts), ("/srv/shared",), {"slurm.conf": text})


Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Ask:
    """Say `backfill setup` with these options and those of `_SOUND`; the status and the words."""
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
        return status, capsys.readouterr().err

    return run


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
    assert status == 2
    assert len(said.splitlines()) == 1


def test_each_mistake_has_a_line_of_its_own(ask: Ask) -> None:
    status, said = ask({"--low": "a b", "--mount": "home"})
    assert (status, len(said.splitlines())) == (2, 2)


def test_hosts_that_do_not_answer_are_told_line_by_line(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _survey()
    dead = tuple(replace(host, problem=f"{host.node.name}: no", inspection=None) for host in found.hosts)
    monkeypatch.setattr(setup, "survey", lambda *_: replace(found, hosts=dead))
    status, said = ask({})
    assert status == 2
    assert said.splitlines() == [
        "backfill: bm1: no",
        "backfill: bm2: no",
        "backfill: no host answers: name their libvirt by --uri, or other hosts by --hosts",
    ]


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
    assert status == 2
