"""What people install: built twice alike, and installed, upgraded, removed and purged in a clean Debian."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.lab.cleanroot import CleanRoot, clean_root

pytestmark = [pytest.mark.real, pytest.mark.soak]

ROOT = Path(__file__).resolve().parents[2]
# What each package needs from Debian, and systemd, which looks at the unit.
NEEDS = {
    "bookworm": ("python3", "libvirt0", "libstdc++6", "zlib1g", "procps", "systemd"),
    "trixie": ("python3", "python3-yaml", "python3-rich", "python3-libvirt", "procps", "systemd"),
}
# What the environment inside of the package for Debian 12 can use.
BINDINGS = (
    "libvirt, libvirt_qemu, openstack, fastapi, uvicorn, jwt, cryptography, prometheus_client, htcondor2"
)
LOOKS_AT_CODE = f"""
/usr/lib/backfill/bin/python -I -B -v -c 'import backfill.ui.cli, {BINDINGS}' 2>/tmp/told
grep -q "code object from '/usr/lib/backfill/.*/cli.*pyc'" /tmp/told
"""
MARKS = {"bookworm": "deb12", "trixie": "deb13"}
INSTALLED = (
    "/usr/bin/backfill",
    "/usr/lib/systemd/system/backfill.service",
    "/usr/lib/systemd/system/backfill-web.service",
    "/usr/share/backfill/config/policy.yaml",
    "/usr/share/backfill/salt_states/node/init.sls",
    "/usr/share/bash-completion/completions/backfill",
    "/usr/share/zsh/vendor-completions/_backfill",
    "/usr/share/fish/vendor_completions.d/backfill.fish",
)
WORKS = """
backfill version
backfill policy check /usr/share/backfill/config/policy.yaml
backfill completion bash >/dev/null
systemd-analyze verify /usr/lib/systemd/system/backfill.service /usr/lib/systemd/system/backfill-web.service
find /usr/share/man/man1 -name 'backfill*' | grep -q backfill-evict
"""
# As `backfill setup` and previews begin it (backfill/ui/own_program.py).
BEGINS_ITSELF = "cd /; $(head -1 /usr/bin/backfill | cut -c 3-) -P -m backfill version"
# What is mounted below our folder belongs to the site: it stays, with what is in it.
PURGED = """
mkdir /var/lib/backfill/shared
mount -t tmpfs tmpfs /var/lib/backfill/shared
touch /var/lib/backfill/shared/saved
dpkg -P backfill
test -e /var/lib/backfill/shared/saved
umount /var/lib/backfill/shared
test -e /var/lib/backfill/journal.db
rm -r /var/lib/backfill
"""
# Neither before there is a policy file nor by an upgrade.
NOT_ENABLED = "! find /etc/systemd -path '*.wants/backfill*' | grep ."
# As `backfill setup` puts the drop-in there; 20 stands for an exposure of 2.0 (systemd-analyze(1)).
LOCKED_IN = """
own=/etc/systemd/system/backfill.service.d
mkdir -p $own
cp /usr/share/backfill/systemd/slurm-user.conf $own/
systemd-analyze --no-pager security --offline=yes --threshold=20 backfill.service
rm -r $own
"""


def build(out: Path) -> dict[str, Path]:
    """Everything, as `make packages` builds it: each file by its name."""
    argv: list[str | Path] = [sys.executable, ROOT / "packaging/build.py", "--out", out]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {path.name: path for path in out.iterdir()}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One build for all these tests."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(params=NEEDS)
def root(
    request: pytest.FixtureRequest, dist: dict[str, Path], tmp_path: Path
) -> Iterator[tuple[CleanRoot, str]]:
    """A clean Debian that has what a package needs, and an older and the present package in /dist."""
    suite: str = request.param
    (present,) = (path for name, path in dist.items() if f"+{MARKS[suite]}_" in name)
    with clean_root(suite, NEEDS[suite], {present.parent: "/dist", tmp_path: "/old"}) as made:
        made.run(
            f"dpkg-deb -R /dist/{present.name} /tmp/tree; "
            "sed -i 's/^Version: .*/Version: 0.0.9/' /tmp/tree/DEBIAN/control; "
            "dpkg-deb --root-owner-group -b /tmp/tree /old/backfill.deb"
        )
        yield made, f"/dist/{present.name}"


def test_two_builds_are_alike(dist: dict[str, Path], tmp_path: Path) -> None:
    again = build(tmp_path / "again")
    assert set(again) == set(dist)
    differ = [name for name, path in dist.items() if digest(path) != digest(again[name])]
    assert differ == []


def test_a_package_is_installed_used_upgraded_removed_and_purged(root: tuple[CleanRoot, str]) -> None:
    clean, package = root
    before = files(clean)
    told = clean.run("dpkg -i /old/backfill.deb").stdout
    assert "not started: write /etc/backfill/policy.yaml first" in told
    clean.run("".join(f"test -e {path}\n" for path in INSTALLED))
    clean.run(NOT_ENABLED)
    clean.run(WORKS)
    clean.run(BEGINS_ITSELF)
    if "+deb12_" in package:
        # Nothing is compiled from its source: that is done when the package is built.
        clean.run(f"{LOOKS_AT_CODE}! grep \"code object from '/usr/lib/backfill/.*\\.py'\" /tmp/told")
        clean.run(f"/usr/lib/backfill/bin/python -I -c 'import {BINDINGS}'")
        assert "libvirt0" in clean.run("dpkg-query -W -f '${Depends}' backfill").stdout
    assert "User=slurm" in clean.run("cat /usr/share/backfill/systemd/slurm-user.conf").stdout
    clean.run(LOCKED_IN)
    clean.run(
        "cp /usr/share/backfill/config/policy.yaml /etc/backfill/; test $(stat -c %a /etc/backfill) = 750; "
        "chgrp games /etc/backfill; "
        "mkdir /var/lib/backfill; echo book >/var/lib/backfill/journal.db"
    )
    assert "not started" not in clean.run(f"dpkg -i {package}").stdout
    assert "0.0.9" not in clean.run("dpkg-query -W backfill").stdout
    clean.run(f"{NOT_ENABLED}; test $(stat -c %G%a /etc/backfill) = games750")
    clean.run(WORKS)
    # What its admin enables stays enabled until the package is purged, as with Debian's own packages.
    clean.run("systemctl enable backfill backfill-web")
    assert "jobs stay as they are" in clean.run("dpkg -r backfill").stdout
    clean.run("test -e /etc/backfill/policy.yaml; test -e /var/lib/backfill/journal.db")
    clean.run("test -L /etc/systemd/system/multi-user.target.wants/backfill.service")
    clean.run(PURGED)
    assert files(clean) == before


def test_the_rpm_has_its_files_and_its_scripts_are_sound(dist: dict[str, Path], tmp_path: Path) -> None:
    """Enterprise Linux is not here: its rpm tool on Debian installs it, and our program runs."""
    (package,) = (path for name, path in dist.items() if name.endswith(".rpm"))
    with clean_root("bookworm", ("rpm", "python3"), {package.parent: "/dist"}) as clean:
        listed = clean.run(f"rpm -qlp /dist/{package.name}").stdout.splitlines()
        for path in INSTALLED:
            assert path.replace("vendor-completions", "site-functions") in listed
        scripts = clean.run(f"rpm -qp --scripts /dist/{package.name}").stdout
        assert {"postinstall", "preuninstall", "postuninstall"} <= set(scripts.replace("(", " ").split())
        clean.run(f"rpm -i --nodeps --nosignature /dist/{package.name} >/tmp/told 2>&1; cat /tmp/told")
        clean.run("ln -s python3 /usr/bin/python3.12; test $(stat -c %a /etc/backfill) = 750")
        # Debian's Python is another release, which looks elsewhere.
        clean.run("cd /usr/lib/backfill/lib; ln -s python3.12 $(basename $(realpath /usr/bin/python3))")
        clean.run("backfill version; backfill policy check /usr/share/backfill/config/policy.yaml")
        clean.run(BEGINS_ITSELF)
        clean.run(
            f"chgrp games /etc/backfill; rpm -U --force --nodeps --nosignature /dist/{package.name}; "
            "test $(stat -c %G%a /etc/backfill) = games750"
        )
        clean.run("find /usr/lib/backfill/lib -type l -delete")
        clean.run("rpm -e --nodeps backfill; test ! -e /usr/bin/backfill; test ! -e /usr/lib/backfill")


def test_the_zipapp_runs_by_itself(dist: dict[str, Path], tmp_path: Path) -> None:
    argv: list[str | Path] = [
        sys.executable,
        "-I",
        dist["backfill.pyz"],
        "policy",
        "check",
        ROOT / "config/policy.yaml",
    ]
    environment = {"PATH": "/usr/bin:/bin", "SHIV_ROOT": str(tmp_path)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no mistakes found" in done.stdout


def test_the_wheel_has_the_site_s_files_and_the_list_of_parts_names_each(dist: dict[str, Path]) -> None:
    (wheel,) = (path for name, path in dist.items() if name.endswith(".whl"))
    names = {name.partition(".data/data/")[2] for name in zipfile.ZipFile(wheel).namelist()}
    assert {"share/backfill/systemd/backfill.service", "share/man/man1/backfill.1"} <= names
    (listed,) = (path for name, path in dist.items() if name.endswith(".cdx.json"))
    parts = {part["name"].lower() for part in json.loads(listed.read_text())["components"]}
    lock = (ROOT / "requirements.site.lock").read_text()
    assert parts == {line.split("==")[0] for line in lock.splitlines() if "==" in line}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files(clean: CleanRoot) -> set[str]:
    """Every path of the root, but for what dpkg, systemd and Python note for themselves."""
    found = clean.run(
        "find / -xdev \\( -path /tmp -o -path /dist -o -path /old -o -path /proc -o -path /dev "
        "-o -path /var/lib/dpkg -o -path /var/log -o -path /var/cache -o -path /run "
        "-o -name __pycache__ \\) -prune -o -print"
    )
    return set(found.stdout.splitlines())
