"""`backfill doctor`: nothing is found where all is well, and each planted fault is, by its code."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backfill.config import ImageEntry, load
from backfill.config.model import CondorEntry, Config, GuestNetworkEntry, Provider
from backfill.core.model.cluster import Node, NodeBase, SlurmSettings, SlurmVersion
from backfill.drivers.libvirt.inspection import HostFile, HostFolder, HostInspection
from backfill.drivers.slurm.conf.site import Site, read_site
from backfill.ui.commands.hook_check import Found
from backfill.ui.commands.options_check import OptionsFound
from backfill.ui.doctor.examination import examine
from backfill.ui.doctor.facts import (
    GUESTS_UNIT,
    GUESTS_WANTED,
    PROTECTIONS,
    Facts,
    HostFacts,
    ImageFacts,
    PlaceFacts,
    PoolFacts,
    SlurmFacts,
    Who,
)
from backfill.ui.doctor.findings import Defect, Grade
from backfill.ui.doctor.guest_life import mending
from backfill.ui.doctor.look import image_facts

ROOT = Path(__file__).parents[2]
CONF = "NodeSet=virtual Feature=backfill\nPartitionName=htc Nodes=virtual\nInclude backfill.conf  # ours\n"
KERNEL = PlaceFacts("/i/vmlinuz", size=9, start=b"\0" * 0x202 + b"HdrS")
INITRD = PlaceFacts("/i/initrd", size=8, start=b"\x1f\x8b")
DISK = PlaceFacts("/i/root.img", size=7, start=b"\0\0")
TEXTS = {"slurm.conf": CONF, "backfill.conf": "", "cgroup.conf": "ConstrainCores=yes\n"}


def _config(tmp_path: Path) -> Config:
    path = tmp_path / "policy.yaml"
    path.write_text((ROOT / "config/policy.minimal.yaml").read_text())
    return load(path)


def _site(text: str) -> Site:
    return read_site(Path("/etc/slurm/slurm.conf"), Path("/etc/slurm/backfill.conf"), text)


def _host() -> HostFacts:
    files = {Path(place.path).name: HostFile(place.size, 0o644, (0, 0)) for place in (KERNEL, INITRD, DISK)}
    conf = HostFolder(files={name: HostFile(1, 0o644, (0, 0)) for name in TEXTS}, texts=TEXTS)
    seen = HostInspection(
        name="bm1",
        bridges=frozenset({"br0"}),
        cpu_models=frozenset({"qemu64", "host-model"}),
        user=(64055, 64055),
        folders={
            "/i": HostFolder(files=files),
            "/etc/slurm": conf,
            "/srv/backfill": HostFolder(files={"mark": HostFile(0, 0o600, (0, 0))}),
        },
    )
    return HostFacts("bm1", inspection=seen, directory="/srv/backfill", marker="mark")


RAW = {
    "SlurmctldParameters": "enable_configless",
    "ReturnToService": "2",
    "TreeWidth": "65533",
    "PrologEpilogTimeout": "10",
    "JobRequeue": "1",
    "ProctrackType": "proctrack/cgroup",
}


def sound(tmp_path: Path) -> Facts:
    """Facts of a site at which all is well."""
    settings = SlurmSettings(
        SlurmVersion(24, 11),
        "mycluster",
        0,
        100,
        "select/cons_tres",
        ("htc",),
        prolog_slurmctld="/usr/local/lib/backfill/prolog_slurmctld",
        raw=RAW,
    )
    slurm = SlurmFacts(
        settings,
        {"bm1": Node("bm1", NodeBase.IDLE)},
        {"htc": {"NodeSets": "virtual", "Nodes": "(null)", "State": "UP"}},
        64030,
        TEXTS,
        _site(CONF),
    )
    return Facts(
        _config(tmp_path),
        Who(64030, "slurm"),
        slurm,
        state_dir=PlaceFacts("/var/lib/backfill"),
        lease=PlaceFacts("/var/spool/slurmctld"),
        images={"default": ImageFacts({"kernel": KERNEL, "initrd": INITRD, "disk": DISK})},
        directories={"/srv/backfill": PlaceFacts("/srv/backfill", free_mb=1e6)},
        hosts=(_host(),),
        hooks=Found(proven=("it was heard",)),
    )


def test_a_sound_site_has_no_finding(tmp_path: Path) -> None:
    assert examine(sound(tmp_path)).all == []
    assert examine(_own_key(_raw(AuthType="auth/slurm")(sound(tmp_path)))).all == []
    assert examine(_closed(sound(tmp_path))).all == []
    assert examine(_protected(**ON)(sound(tmp_path))).all == []
    assert examine(_asking(PoolFacts(token_left_s=1e8))(sound(tmp_path))).all == []


Plant = Callable[[Facts], Facts]


def _own_key(facts: Facts) -> Facts:
    """Guests that are given Slurm's own key, whatever slurm.conf says."""
    libvirt = facts.config.libvirt
    assert libvirt is not None
    around = replace(libvirt.surroundings, munge_key="", slurm_key="/etc/slurm/slurm.jwks")
    return replace(facts, config=replace(facts.config, libvirt=replace(libvirt, surroundings=around)))


def _closed(facts: Facts) -> Facts:
    """Guests that shall reach whom they need alone."""
    libvirt = facts.config.libvirt
    assert libvirt is not None
    closed = replace(libvirt, guest_network=GuestNetworkEntry(closed=True))
    return replace(facts, config=replace(facts.config, libvirt=closed))


def _asking(seen: PoolFacts) -> Plant:
    """A daemon that asks a pool."""

    def plant(facts: Facts) -> Facts:
        return replace(facts, config=replace(facts.config, condor=CondorEntry("cm", "/t")), pool=seen)

    return plant


def _slurm(**changes: Any) -> Plant:
    def plant(facts: Facts) -> Facts:
        assert facts.slurm is not None
        return replace(facts, slurm=replace(facts.slurm, **changes))

    return plant


def _raw(**changes: str) -> Plant:
    def plant(facts: Facts) -> Facts:
        assert facts.slurm is not None
        settings = replace(facts.slurm.settings, raw={**RAW, **changes})
        return _slurm(settings=settings)(facts)

    return plant


def _facts(**changes: Any) -> Plant:
    return lambda facts: replace(facts, **changes)


def _on_host(**changes: Any) -> Plant:
    def plant(facts: Facts) -> Facts:
        host = facts.hosts[0]
        assert host.inspection is not None
        return replace(facts, hosts=(replace(host, inspection=replace(host.inspection, **changes)),))

    return plant


def _folder(path: str, folder: HostFolder) -> Plant:
    def plant(facts: Facts) -> Facts:
        inspection = facts.hosts[0].inspection
        assert inspection is not None
        return _on_host(folders={**inspection.folders, path: folder})(facts)

    return plant


ON = {"protected_symlinks": "1\n", "protected_hardlinks": "1\n", "protected_regular": "2\n"}


def _protected(**settings: str) -> Plant:
    """A host where machines share memory, and what its kernel does about files of others."""

    def plant(facts: Facts) -> Facts:
        told = _folder(PROTECTIONS, HostFolder(texts=settings))(facts)
        return replace(told, hosts=tuple(replace(h, exposed="the memory (/dev/shm)") for h in told.hosts))

    return plant


OFF = dict.fromkeys(ON, "0\n")


def _way(mode: int | None) -> Plant:
    """A host whose directory of instances lies in one with this mode."""
    return _on_host(modes={"/srv/backfill": 0o755, "/srv": mode, "/": 0o755})


def test_a_directory_of_a_host_that_lies_where_everybody_may_write_is_exposed(tmp_path: Path) -> None:
    """Whatever it is called; not where the kernel there protects it, and not where only its owner may."""
    hidden = _folder(PROTECTIONS, HostFolder(texts=OFF))(sound(tmp_path))
    (found,) = examine(_way(0o1777)(hidden)).all
    assert "everybody may write where /srv/backfill is" in found.what
    assert (found.about, found.grade) == ("bm1", Grade.ADVICE)
    assert examine(_way(0o755)(hidden)).all == []
    assert examine(_way(0o1777)(_folder(PROTECTIONS, HostFolder(texts=ON))(sound(tmp_path)))).all == []
    (unseen,) = examine(_way(None)(hidden)).all
    assert "whether everybody may write /srv on bm1 cannot be seen" in unseen.what


def test_the_remedy_for_links_says_all_and_weakens_nothing(tmp_path: Path) -> None:
    """It writes a file anew, which may have mended another setting before."""
    settings = {"protected_symlinks": "0\n", "protected_regular": "2\n"}
    unread, found = examine(_protected(**settings)(sound(tmp_path))).all
    assert (unread.grade, found.grade) == (Grade.UNKNOWN, Grade.ADVICE)
    assert unread.what.startswith("fs.protected_hardlinks of bm1 cannot be read, and everybody may write")
    assert "bm1 has fs.protected_symlinks=0, and" in found.what
    lines = "fs.protected_symlinks=1 fs.protected_hardlinks=1 fs.protected_regular=2"
    assert f"printf '%s\\n' {lines} >/etc/sysctl.d/60-backfill.conf" in found.mend


def test_settings_about_links_that_cannot_be_read_are_not_known(tmp_path: Path) -> None:
    """On a host, whose libvirt may not show the kernel's files, and here."""
    hidden = _folder(PROTECTIONS, HostFolder(problem="no storage driver"))
    on_host = replace(_protected()(sound(tmp_path)), hosts=hidden(_protected()(sound(tmp_path))).hosts)
    for facts, where in ((on_host, "bm1"), (replace(sound(tmp_path), exposed="/tmp/own"), "this machine")):
        (found,) = examine(facts).all
        assert (found.defect, found.grade, found.about) == (Defect.LINKS, Grade.UNKNOWN, where)
        assert f"the settings fs.protected_* of {where} cannot be read" in found.what


def _conf_there(**texts: str | None) -> Plant:
    named = {name.replace("_", "."): text for name, text in texts.items()}
    there = {name: text for name, text in {**TEXTS, **named}.items() if text is not None}
    return _folder(
        "/etc/slurm", HostFolder(files={name: HostFile(1, 0o644, (0, 0)) for name in there}, texts=there)
    )


def _image(**files: PlaceFacts) -> Plant:
    whole: Mapping[str, PlaceFacts] = {"kernel": KERNEL, "initrd": INITRD, "disk": DISK}
    return _facts(images={"default": ImageFacts({**whole, **files})})


def _directory(**changes: Any) -> Plant:
    return _facts(directories={"/srv/backfill": replace(PlaceFacts("/srv/backfill", free_mb=1e6), **changes)})


def _unmounted_here(facts: Facts) -> Facts:
    """The hosts have it mounted, and so do not see what is put into the bare mount point here."""
    return _folder("/srv/backfill", HostFolder())(_directory(unmounted="/srv")(facts))


def _swapped(facts: Facts) -> Facts:
    """The uri of bm1 is that of bm2."""
    (one,) = facts.config.hosts
    config = replace(facts.config, hosts=(one, replace(one, name="bm2", node="bm2.site")))
    return _on_host(name="bm2")(replace(facts, config=config))


_bare = _facts(
    images={"default": ImageFacts({"kernel": KERNEL, "initrd": INITRD, "disk": DISK}, systemd=False)}
)
_no_disk = _image(disk=replace(DISK, size=0))
_OTHER = CONF.replace("Feature=backfill", "Feature=other")


def _guests(own: str = "cannot open directory: No such file or directory", missing: bool = True) -> Plant:
    """libvirt-guests is enabled; `own`: what libvirt says of the file by which a host can mask it."""

    def plant(facts: Facts) -> Facts:
        links = {name: HostFile(9, 0o644, (0, 0)) for name in ("cron.service", "libvirt-guests.service")}
        wanted = _folder(GUESTS_WANTED, HostFolder(files=links))(facts)
        return _folder(GUESTS_UNIT, HostFolder(own, missing))(wanted)

    return plant


def test_a_masked_unit_is_not_called_enabled(tmp_path: Path) -> None:
    """The link that enables it stays; one that is not enabled, or not seen, is none either."""
    masked = _guests("cannot open directory: Not a directory", missing=False)
    none = _folder(GUESTS_WANTED, HostFolder(files={"cron.service": HostFile(9, 0o644, (0, 0))}))
    for plant in (masked, none, _folder(GUESTS_WANTED, HostFolder("no storage driver"))):
        assert examine(plant(sound(tmp_path))).all == []


PLANTS: tuple[tuple[Defect, str, Plant], ...] = (
    (Defect.SLURM_SILENT, "Slurm", _facts(slurm=None, slurm_problem="slurmctld: no answer; scontrol ping")),
    (Defect.NOT_ALLOWED, "user", _facts(who=Who(1000, "ada"))),
    (Defect.POLICY_CONFLICT, "file", _slurm(conflicts=("line 3: cluster is a; write cluster: b",))),
    (Defect.POLICY_HINT, "hint", _slurm(hints=("host bm2 cannot be reached now: dead",))),
    (Defect.NOT_CONFIGLESS, "configless", _raw(SlurmctldParameters="(null)")),
    (Defect.RETURN_TO_SERVICE, "return", _raw(ReturnToService="1")),
    (Defect.TREE_WIDTH, "tree", _raw(TreeWidth="2")),
    (Defect.PROLOG_TIMEOUT, "hook time", _raw(PrologEpilogTimeout="3 sec")),
    (Defect.PROLOG_TIMEOUT, "prologs' own", _raw(PrologTimeout="3 sec")),
    (Defect.NO_REQUEUE, "requeue", _raw(JobRequeue="0")),
    (Defect.GUEST_CGROUPS, "cgroups", _bare),
    (Defect.PARTITION_EMPTY, "nodes", _slurm(partitions={"htc": {"Nodes": "bm1", "State": "UP"}})),
    (
        Defect.PARTITION_EMPTY,
        "feature",
        lambda facts: _conf_there(slurm_conf=_OTHER)(
            _slurm(conf={**TEXTS, "slurm.conf": _OTHER}, site=_site(_OTHER))(facts)
        ),
    ),
    (Defect.PARTITION_CLOSED, "state", _slurm(partitions={"htc": {"NodeSets": "virtual", "State": "DOWN"}})),
    (Defect.HOST_NODE, "down", _slurm(nodes={"bm1": Node("bm1", NodeBase.DOWN)})),
    (Defect.HOST_NODE, "new", _slurm(nodes={"bm1": Node("bm1", NodeBase.UNKNOWN)})),
    (
        Defect.HOST_NODE,
        "silent",
        _slurm(nodes={"bm1": Node("bm1", NodeBase.IDLE, frozenset({"NOT_RESPONDING"}))}),
    ),
    (
        Defect.HOST_NODE,
        "asleep",
        _slurm(nodes={"bm1": Node("bm1", NodeBase.IDLE, frozenset({"POWERED_DOWN", "NOT_RESPONDING"}))}),
    ),
    (Defect.HOST_NODE, "drained", _slurm(nodes={"bm1": Node("bm1", NodeBase.IDLE, frozenset({"DRAIN"}))})),
    (Defect.CONF_DIFFERS, "slurm.conf", _conf_there(slurm_conf=CONF + "JobRequeue=0\n")),
    (Defect.CONF_DIFFERS, "cgroup.conf", _conf_there(cgroup_conf="ConstrainCores=no\n")),
    (Defect.INCLUDE_MISSING, "there", _conf_there(backfill_conf=None)),
    (Defect.INCLUDE_ABSENT, "here", _slurm(site=_site(CONF.replace("Include backfill.conf", "")))),
    (Defect.OTHER_CONTROLLER, "backup", _raw(**{"SlurmctldHost[0]": "ctl1", "SlurmctldHost[1]": "ctl2"})),
    (Defect.HOOK_BROKEN, "deaf", _facts(hooks=Found(problems=("the hook says: nothing; install it again",)))),
    (Defect.HOOK_BROKEN, "not tried", _facts(hooks=None, hooks_unknown="no daemon runs")),
    (
        Defect.OPTIONS,
        "none",
        _facts(options=OptionsFound("sbatch has no option; backfill slurm spank install")),
    ),
    (
        Defect.OPTIONS,
        "old",
        _facts(options=OptionsFound(problems=("it is for Slurm 22.05; install it again",))),
    ),
    (Defect.MUNGE, "munged", _facts(munge_problem="munge: dead")),
    (Defect.MUNGE_KEY_UNREADABLE, "key", _facts(key_problem="Permission denied")),
    (Defect.MUNGE_KEY_OTHER, "other key", _facts(key_refused="Invalid credential")),
    (Defect.OTHER_AUTH, "auth", _raw(AuthType="auth/slurm")),
    (Defect.OTHER_AUTH, "own key", _own_key),
    (
        Defect.SLURM_KEY_UNREADABLE,
        "own key closed",
        lambda facts: replace(_own_key(_raw(AuthType="auth/slurm")(facts)), key_problem="Permission denied"),
    ),
    (Defect.SHORT_OF_TOOLS, "qemu-img", _facts(tools_missing=("qemu-img",))),
    (Defect.LIBVIRT_MISSING, "binding", _facts(libvirt_missing=True)),
    (Defect.STATE_DIR, "journal", _facts(state_dir=PlaceFacts("/var/lib/backfill", "it may not write /var"))),
    (Defect.STATE_DIR, "root's", _facts(state_files=("daemon.lock", "journal.db"))),
    (Defect.STATE_DIR_FULL, "full", _facts(state_dir=PlaceFacts("/var/lib/backfill", free_mb=0.0))),
    (Defect.SOCKET, "socket", _facts(socket_problem="it may not write /run")),
    (Defect.LISTEN, "listen", _facts(listen_problem="Address already in use")),
    (Defect.LEASE, "lease", _facts(lease=PlaceFacts("/var/spool/slurmctld", "it is not seen from here"))),
    (Defect.IMAGE_MISSING, "image", _image(disk=replace(DISK, problem="No such file or directory"))),
    (Defect.IMAGE_DAMAGED, "kernel", _image(kernel=replace(KERNEL, start=b"#!/bin/sh"))),
    (Defect.IMAGE_DAMAGED, "initrd", _image(initrd=replace(INITRD, start=b"<html>"))),
    (Defect.IMAGE_DAMAGED, "format", _image(disk=replace(DISK, start=b"QFI\xfb"))),
    (Defect.IMAGE_DAMAGED, "empty", lambda facts: _folder("/i", HostFolder("denied"))(_no_disk(facts))),
    (
        Defect.IMAGE_CHANGED,
        "sum",
        _facts(images={"default": ImageFacts({"kernel": KERNEL, "initrd": INITRD, "disk": DISK}, "abc")}),
    ),
    (
        Defect.IMAGE_RELEASE,
        "newer",
        _facts(
            images={
                "default": ImageFacts({"kernel": KERNEL, "initrd": INITRD, "disk": DISK}, slurmd="25.5.1-2")
            }
        ),
    ),
    (Defect.IMAGE_NOT_ON_HOST, "no folder", _folder("/i", HostFolder("No such file", missing=True))),
    (Defect.IMAGE_NOT_ON_HOST, "half", _image(disk=replace(DISK, size=70))),
    (Defect.DIRECTORY, "directory", _directory(problem="Read-only file system", free_mb=None)),
    (Defect.DIRECTORY, "not mounted here", _unmounted_here),
    (Defect.DIRECTORY_NOT_SHARED, "mount", _folder("/srv/backfill", HostFolder())),
    (Defect.DIRECTORY_FULL, "room", _directory(free_mb=12.0)),
    (Defect.DIRECTORY_CLOSED, "way", _directory(closed_at=("/srv", 0, 0))),
    (Defect.FILES_CLOCK, "clock", _directory(ahead_s=-90.0)),
    (Defect.HOST_SILENT, "libvirtd", _facts(hosts=(HostFacts("bm1", "cannot reach libvirt on bm1"),))),
    (Defect.OTHER_MACHINE, "machine", _on_host(name="bm7")),
    (Defect.OTHER_MACHINE, "other host", _swapped),
    (Defect.BRIDGE, "bridge", _on_host(bridges=frozenset({"virbr0"}))),
    (Defect.BRIDGE, "bridges", _on_host(bridges=None)),
    (Defect.GUEST_FILTER, "filter", lambda facts: _on_host(filters=False)(_closed(facts))),
    (Defect.NO_KVM, "kvm", _on_host(kvm=False)),
    (Defect.MACHINE, "board", _on_host(machine_problem="the machine 'x' is not supported")),
    (Defect.CPU_MODEL, "processor", _on_host(cpu_models=frozenset({"Conroe"}))),
    (Defect.FOREIGN_GUEST, "name", _on_host(domains=frozenset({"vn2", "mail"}))),
    (Defect.GUESTS_SAVED, "libvirt-guests", _guests()),
    (Defect.ADDRESS_TAKEN, "address", _facts(taken={"vn3": "10.0.1.3"})),
    (Defect.LINKS, "memory", _protected(**{**ON, "protected_symlinks": "0\n"})),
    (Defect.LINKS, "one unread", _protected(**{**ON, "protected_regular": ""})),
    (Defect.LINKS, "way", lambda facts: _way(0o1777)(_folder(PROTECTIONS, HostFolder(texts=OFF))(facts))),
    (Defect.LINKS, "way unseen", lambda facts: _way(None)(facts)),
    (Defect.LINKS, "here", _facts(exposed="/tmp/own", protections={**ON, "protected_hardlinks": "0\n"})),
    (Defect.CONTROLLER_SILENT, "port", _facts(controller_problems={"10.0.0.1:6817": "refused"})),
    (Defect.SALT, "salt", _facts(salt_problem="salt: no master; start salt-master")),
    (Defect.POOL_TOKEN, "/t", _asking(PoolFacts("the HTCondor pool: no token; make one"))),
    (Defect.POOL_TOKEN, "/t", _asking(PoolFacts(token_left_s=3600.0))),
    (Defect.POOL_SILENT, "cm", _asking(PoolFacts(silent="the HTCondor pool: nothing answers; start it"))),
)


@pytest.mark.parametrize(("defect", "which", "plant"), PLANTS, ids=[f"{d}: {w}" for d, w, _ in PLANTS])
def test_each_planted_fault_is_found_alone(defect: Defect, which: str, plant: Plant, tmp_path: Path) -> None:
    """By its code, once, with the reason why it matters; and nothing else is accused."""
    found = examine(plant(sound(tmp_path))).all
    assert [finding.defect for finding in found] == [defect]
    told = found[0].to_json()
    assert all(told[key] for key in ("code", "grade", "about", "what", "why"))
    assert told["mend"] or which in ("hint",)


def test_the_remedy_for_a_missing_include_suits_a_file_without_a_last_line_end(tmp_path: Path) -> None:
    """Otherwise it would be a word of that line, and slurmctld would not start again."""
    conf = tmp_path / "slurm.conf"
    conf.write_text("PartitionName=htc State=UP")
    plant = _slurm(site=_site(CONF.replace("Include backfill.conf", "")))
    (finding,) = examine(plant(sound(tmp_path))).all
    command = finding.mend.partition(";")[0].replace("/etc/slurm/slurm.conf", str(conf))
    subprocess.run(["sh", "-c", command], check=True)
    assert conf.read_text().split("\n")[0] == "PartitionName=htc State=UP"
    assert read_site(conf, conf.with_name("backfill.conf")).include is not None


def test_a_directory_that_a_host_has_not_mounted_is_named_with_its_mount_point(tmp_path: Path) -> None:
    """The share may be mounted further up than the directory of the policy file."""
    missing = _folder("/srv/backfill", HostFolder("No such file or directory", missing=True))
    (found,) = examine(missing(_directory(mount="/srv")(sound(tmp_path)))).all
    assert "/srv/backfill on bm1 is not the directory of that name here" in found.what
    assert found.mend.startswith("mount the shared directory at /srv, which has /srv/backfill, on bm1")
    (found,) = examine(missing(_directory(mount="/srv/backfill")(sound(tmp_path)))).all
    assert found.mend.startswith("mount the shared directory at /srv/backfill on bm1")


def test_a_slurmd_as_old_as_slurmctld_or_older_fits(tmp_path: Path) -> None:
    """However Debian writes its version; and one that nobody knows is believed."""
    whole = ImageFacts({"kernel": KERNEL, "initrd": INITRD, "disk": DISK})
    for slurmd in ("24.11.5-4", "22.05.8-4+deb12u3", "1:23.11.4-1", "", "unknown"):
        facts = replace(sound(tmp_path), images={"default": replace(whole, slurmd=slurmd)})
        assert examine(facts).all == []


def test_a_slurm_that_is_down_is_one_fault(tmp_path: Path) -> None:
    """That nothing answers at its port is no mistake of the policy file."""
    down = replace(
        sound(tmp_path),
        slurm=None,
        slurm_problem="no contact",
        controller_problems={"10.0.0.1:6817": "refused"},
    )
    (found,) = examine(down).all
    assert found.defect is Defect.SLURM_SILENT
    assert "systemctl status slurmctld" in found.mend


def test_the_list_of_packages_beside_a_disk_is_read(tmp_path: Path) -> None:
    """As `backfill image build` leaves it there."""
    entry = ImageEntry(kernel="/k", initrd="/i", disk=str(tmp_path / "disk.raw"), cmdline="quiet")
    assert image_facts(entry).slurmd == ""
    (tmp_path / "packages.lock").write_text("slurmd 22.05.8-4+deb12u3 amd64\nsystemd-sysv 252 amd64\n")
    seen = image_facts(entry)
    assert (seen.slurmd, seen.systemd) == ("22.05.8-4+deb12u3", True)


def test_another_hosts_machine_is_a_fault_and_another_name_is_not(tmp_path: Path) -> None:
    """A machine may be called otherwise than Slurm's node; it is not two hosts."""
    (swapped,) = examine(_swapped(sound(tmp_path))).all
    assert (swapped.grade, swapped.mend.rpartition(": ")[2]) == (Grade.FAULT, "this one is bm2's")
    (renamed,) = examine(_on_host(name="bm7")(sound(tmp_path))).all
    assert renamed.grade is Grade.ADVICE
    assert examine(_on_host(name="")(sound(tmp_path))).all == []


def test_no_hook_is_a_fault(tmp_path: Path) -> None:
    """The hint of the daemon's own check is no second finding."""
    facts = sound(tmp_path)
    assert facts.slurm is not None
    settings = replace(facts.slurm.settings, prolog_slurmctld="")
    found = examine(_slurm(settings=settings)(replace(facts, hooks=Found()))).all
    assert [finding.defect for finding in found] == [Defect.HOOK_MISSING]


def test_a_guest_that_never_ran_may_lack_a_kvm_that_works() -> None:
    """Hypervisors' libvirt offers it inside of other machines; nothing else knows that no guest boots."""
    assert mending("", "bm1", never_ran=False) == "mend that, then backfill doctor --boot again"
    told = mending("look at its console", "bm1", never_ran=True)
    assert told.startswith("look at its console. ")
    assert "backfill setup --emulated" in told


def test_a_configless_host_has_no_copies(tmp_path: Path) -> None:
    """What is not there cannot differ."""
    plant = _folder("/etc/slurm", HostFolder("cannot open directory", missing=True))
    assert examine(plant(sound(tmp_path))).all == []


def test_guests_outside_the_controllers_network_need_a_gateway(tmp_path: Path) -> None:
    facts = sound(tmp_path)
    libvirt = facts.config.libvirt
    assert libvirt is not None
    far = replace(libvirt.surroundings, controller="192.168.0.1")
    routed = replace(far, gateway="10.0.255.254")
    for around, wanted in ((far, [Defect.ADDRESS_OUTSIDE]), (routed, [])):
        config = replace(facts.config, libvirt=replace(libvirt, surroundings=around))
        assert [f.defect for f in examine(replace(facts, config=config)).all] == wanted


def test_every_defect_can_be_planted() -> None:
    """Apart from what is found before or after the checks."""
    others = {
        Defect.POLICY_UNREADABLE,
        Defect.POLICY_MISTAKE,
        Defect.HOOK_MISSING,
        Defect.ADDRESS_OUTSIDE,
        Defect.CLOUD,
        Defect.GUEST,
        Defect.HOST_CLOCK,
    }
    assert {defect for defect, _, _ in PLANTS} | others == set(Defect)


def test_into_a_cloud_nobody_looks(tmp_path: Path) -> None:
    """A site without libvirt is told what was not looked at, and why, instead of that it is well."""
    facts = sound(tmp_path)
    hosts = tuple(replace(host, provider=Provider.OPENSTACK, uri="") for host in facts.config.hosts)
    config = replace(facts.config, hosts=hosts, libvirt=None)
    cloud = HostFacts("bm1", ours=frozenset())
    seen = examine(replace(facts, config=config, hosts=(cloud,), images={}, directories={}))
    told = {title for title, why in seen.unseen.items() if why.startswith("all hosts are of a cloud")}
    assert told == {
        "a guest's slurmd can track its jobs",
        "hosts can run such guests",
        "guests are the daemon's alone",
        "names are free",
        "directories can be written",
        "images are there and whole",
        "hosts see directories and images",
        "addresses lead to slurmctld",
    }
    assert seen.all == []


def test_what_could_not_be_looked_at_is_not_said_to_be_well(tmp_path: Path) -> None:
    """Without Slurm, a host or a section of the policy file, some checks have nothing before them."""
    unused = {
        "users can ask for machines of their own": "own_machines.enabled is false",
        "Salt": "salt is not configured",
        "the HTCondor pool answers": "condor is not configured",
    }
    assert examine(sound(tmp_path)).unseen == unused
    dumb = examine(_facts(slurm=None, slurm_problem="no answer")(sound(tmp_path)))
    assert dumb.unseen["slurm.conf has what we need"] == "Slurm does not answer"
    assert dumb.unseen["addresses lead to slurmctld"] == "Slurm does not answer"
    assert "hosts can run such guests" not in dumb.unseen
    silent = HostFacts("bm1", "cannot reach libvirt on bm1", directory="/srv/backfill")
    dark = examine(_facts(hosts=(silent,))(sound(tmp_path)))
    assert set(dark.unseen.values()) - set(unused.values()) == {"no host is seen", "not every host answers"}
    half = examine(_facts(hosts=(silent, _host()))(sound(tmp_path)))
    assert half.unseen == unused | {"addresses are free": "not every host answers"}
    asked = examine(_asking(PoolFacts(token_left_s=1e8))(sound(tmp_path)))
    assert "the HTCondor pool answers" not in asked.unseen
