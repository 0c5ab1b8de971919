"""What the packages' own files do to a machine: units stay the admin's, and so does /etc/backfill."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

PACKAGING = Path(__file__).parents[2] / "packaging"
SCRIPTS = (*sorted((PACKAGING / "debian/common").glob("backfill.*")), PACKAGING / "rpm/backfill.spec")
RULES = sorted(PACKAGING.glob("debian/*/rules"))


@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.parent.name)
def test_debhelper_is_kept_from_enabling_and_starting_the_units(rules: Path) -> None:
    """The daemon has no policy file at the installation; one that was stopped for an upgrade stays so."""
    # An empty rule: dh then leaves the step out.
    assert re.search(r"^override_dh_installsystemd:\n(?!\t)", rules.read_text(), re.MULTILINE)


def test_the_daemon_starts_after_file_systems_of_the_network() -> None:
    """And ends before them: its instances' files may be on one."""
    unit = (PACKAGING.parent / "config/backfill.service").read_text()
    assert re.search(r"^After=.*\bremote-fs\.target\b", unit, re.MULTILINE)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_script_enables_or_starts_a_unit(script: Path) -> None:
    """An upgrade restarts what runs; nothing else is begun."""
    commands = re.findall(r"(?:systemctl|deb-systemd-\w+)((?: --?[\w=-]+)*) ([\w-]+)", script.read_text())
    verbs = {verb for _, verb in commands}
    assert verbs <= {"daemon-reload", "try-restart", "update-state", "stop", "disable", "purge"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_an_upgrade_leaves_the_folder_as_the_admin_made_it(script: Path) -> None:
    """Whose group it is, the daemon's user may need."""
    for line in script.read_text().splitlines():
        if "install -d" in line and "/etc/backfill" in line:
            assert line.strip().startswith("[ -d /etc/backfill ] || install -d -m 0750 ")


def test_the_program_of_the_rpm_can_begin_itself_anew() -> None:
    """By the Python that it runs in, as setup and previews do: one that finds the package by itself."""
    spec = (PACKAGING / "rpm/backfill.spec").read_text()
    started = spec[spec.index("%{_bindir}/backfill <<'END'") :]
    assert started.splitlines()[1] == "#!%{home}/bin/python"
    assert "sys.path" not in started
    # -s would hide what pip installs on EL, such as libvirt's bindings; the environment sees the system's.
    assert "include-system-site-packages = true" in spec


@pytest.mark.parametrize("at", ["shared", "."])
@pytest.mark.parametrize("how", ["-t tmpfs tmpfs", "--bind"])
def test_purging_leaves_folders_of_ours_in_which_something_is_mounted(
    at: str, how: str, tmp_path: Path
) -> None:
    """Disks and saved memory of instances are not the package's; root alone can try that.

    rm crosses a bind mount of its own file system, and what is mounted at the folder that it is told.
    """
    if os.getuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        return
    state, site, mount = tmp_path / "var/lib/backfill", tmp_path / "site", tmp_path / "var/lib/backfill" / at
    for folder in (mount, site, tmp_path / "etc/backfill"):
        folder.mkdir(parents=True)
    script = (PACKAGING / "debian/common/backfill.postrm").read_text()
    for place in ("/var/lib/backfill", "/etc/backfill"):
        script = script.replace(f" {place}", f" {tmp_path}{place}")
    postrm = tmp_path / "postrm"
    postrm.write_text(script.replace("deb-systemd-helper", "true"))
    steps = (
        f"mount {how if how != '--bind' else f'--bind {site}'} {mount}",
        f"touch {mount}/saved",
        f"sh {postrm} purge",
        f"test -e {mount}/saved",
        f"test ! -e {tmp_path}/etc/backfill",
        f"umount {mount}",
        f"sh {postrm} purge",
        f"test ! -e {state}",
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-euc", "\n".join(steps)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"{state} stays, for what is mounted there: {mount}\n") == 1


@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_what_takes_the_place_of_the_package_is_told(kind: str, tmp_path: Path) -> None:
    """A site that began with a checkout would go on with that, and believe that it is upgraded."""
    units, program = tmp_path / "etc/systemd/system", tmp_path / "usr/local/bin/backfill"
    for folder in (units, program.parent):
        folder.mkdir(parents=True)
    (units / "backfill-web.service").symlink_to("/dev/null")  # masked: that is the admin's word
    assert "remove it" not in _installed(kind, tmp_path)
    (units / "backfill.service").write_text("[Service]\nExecStart=/usr/bin/backfill daemon\n")
    assert "remove it" not in _installed(kind, tmp_path)  # as `systemctl edit --full` makes it
    unit = (PACKAGING.parent / "config/backfill.service").read_text()
    (units / "backfill.service").write_text(unit)
    program.touch()
    told = _installed(kind, tmp_path)
    assert f"{units}/backfill.service starts another program in place of this package's: remove it" in told
    assert f"{program} is found before this package's program: remove it" in told


def _installed(kind: str, root: Path) -> str:
    """Run the package's script of an installation on files below a folder; what it says."""
    script = (PACKAGING / "debian/common/backfill.postinst").read_text()
    if kind == "rpm":
        spec = (PACKAGING / "rpm/backfill.spec").read_text()
        script = spec.partition("%post\n")[2].partition("%preun\n")[0].replace("%{python}", "true")
    for place in ("/etc/", "/run/", "/usr/local/"):
        script = re.sub(rf"(?<=[ =\"]){place}", f"{root}{place}", script)
    argv = ["sh", "-ec", script.replace("deb-systemd-helper", "true"), "script", "configure", "1"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_who_removes_it_is_told_that_nobody_looks_after_dead_nodes(kind: str, tmp_path: Path) -> None:
    """slurm.conf stays as it is, and Slurm itself gives no node up by it."""
    script, words = (PACKAGING / "debian/common/backfill.prerm").read_text(), ["remove"]
    if kind == "rpm":
        spec = (PACKAGING / "rpm/backfill.spec").read_text()
        script, words = spec.partition("%preun\n")[2].partition("%postun\n")[0], ["0"]
    for place in ("/var/", "/run/", "%{home}/"):
        script = re.sub(rf"(?<=[ =\"]){place}", f"{tmp_path}/", script)
    argv = ["sh", "-ec", script, "script", *words]
    told = "where slurm.conf has SlurmdTimeout=0 nobody sets dead nodes DOWN while the daemon is away"
    assert told not in subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    (tmp_path / "lib/backfill").mkdir(parents=True)
    (tmp_path / "lib/backfill/journal.db").touch()
    assert told in subprocess.run(argv, capture_output=True, text=True, check=True).stdout
