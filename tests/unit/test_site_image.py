"""The image of a site: whose users are in it, what nobody may do there, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backfill.lab.image import GuestImage
from backfill.lab.siteimage import root
from backfill.lab.siteimage.build import check_place, name_of, put
from backfill.lab.siteimage.people import merged
from backfill.lab.siteimage.recipe import FILES, SiteRecipe, Users, site_files
from backfill.lab.spec import LabError
from backfill.ui.cli import main

OWN = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nslurm:x:64030:64030::/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\ndisk:x:6:\nusers:x:100:\nslurm:x:64030:\n",
    "shadow": "root:*:19000:0:99999:7:::\nslurm:!:19000::::::\n",
}
ADA = "ada:secret:2001:2001:Ada:/home/ada:/bin/bash\n"


def site(passwd: str = ADA, group: str = "ada:x:2001:\n") -> dict[str, str]:
    """The site's files: its people beside what every system has."""
    return {"passwd": f"root:x:0:0:root:/root:/bin/sh\n{passwd}", "group": f"root:x:0:ada\n{group}"}


def test_people_come_without_passwords_and_without_rights() -> None:
    """Nobody can log in, and nobody is in a group of the system."""
    made = merged(OWN, site(group="ada:x:2001:\ndisk:x:6:ada\nproject:x:3000:ada\nnogroup:x:65534:\n"))
    assert made.passwd == OWN["passwd"] + "ada:x:2001:2001:Ada:/home/ada:/bin/bash\n"
    assert made.group == OWN["group"] + "ada:x:2001:\nproject:x:3000:ada\n"
    assert made.shadow.splitlines()[-1].startswith("ada:*:")
    assert "secret" not in made.passwd + made.shadow


def test_lines_of_other_name_services_are_passed_over() -> None:
    made = merged(OWN, site(passwd=f"{ADA}+::::::\n# people\n\nnobody:x:65534:65534::/:/bin/false\n"))
    assert made.passwd == OWN["passwd"] + ADA.replace("secret", "x")


def test_users_of_packages_with_high_numbers_are_no_people() -> None:
    """Such as the one of libvirt, whose group is the system's: a controller that has libvirt has him."""
    packages = "libvirt-qemu:x:64055:106:Libvirt Qemu:/var/lib/libvirt:/usr/sbin/nologin\n"
    theirs = site(passwd=ADA + packages, group="ada:x:2001:\nlibvirt-qemu:x:64055:libvirt-qemu\n")
    made = merged(OWN, theirs)
    assert "libvirt-qemu" not in made.passwd + made.group + made.shadow
    far = "eve:x:200001:200001::/home/eve:/bin/bash\n"  # from a directory service
    assert merged(OWN, site(passwd=ADA + far)).passwd.endswith(far)


def test_the_common_group_users_opens_nothing() -> None:
    made = merged(OWN, site(passwd="ada:x:2001:100::/home/ada:/bin/bash\n", group="users:x:100:\n"))
    assert made.passwd.endswith("ada:x:2001:100::/home/ada:/bin/bash\n")
    assert made.group == OWN["group"]


def test_slurms_user_has_the_sites_number() -> None:
    """A guest's slurmd believes slurmctld by the number of its user."""
    theirs = site(passwd=f"{ADA}slurm:x:981:980::/:/sbin/nologin\n", group="ada:x:2001:\nslurm:x:980:\n")
    made = merged(OWN, theirs)
    assert "slurm:x:981:980:" in made.passwd
    assert "slurm:x:980:" in made.group
    assert (made.renumbered_users, made.renumbered_groups) == ({64030: 981}, {64030: 980})


@pytest.mark.parametrize(
    ("passwd", "said"),
    [
        ("ada:x:2001\n", "line 2 of the site's passwd is none: 'ada:x:2001'"),
        ("ada:x:2001:6:::\n", "ada has group 6 of the system as his own"),
        ("slurm:x:0:0:::\n", "user slurm has number 0 at the site, which is root's in the image"),
    ],
)
def test_people_who_cannot_be_taken_over_are_told(passwd: str, said: str) -> None:
    with pytest.raises(LabError, match=said):
        merged(OWN, site(passwd=passwd))


def test_a_person_with_the_name_of_a_system_user_is_told() -> None:
    own = OWN | {"passwd": OWN["passwd"] + "chrony:x:101:101:::\n"}
    with pytest.raises(
        LabError, match="chrony has number 2002 at the site and is a user of the system with 101"
    ):
        merged(own, site(passwd="chrony:x:2002:2002:::\n"))


def test_no_program_runs_as_another_user(tmp_path: Path) -> None:
    """Bits for that are taken from files; a folder's mean something else, and a link's target is not ours."""
    outside = tmp_path / "outside"
    outside.touch()
    outside.chmod(0o4755)
    tree = tmp_path / "root"
    (tree / "mail").mkdir(parents=True)
    (tree / "mail").chmod(0o2775)
    (tree / "su").touch()
    (tree / "su").chmod(0o6755)
    (tree / "link").symlink_to(outside)
    root.drop_set_id(tree)
    assert (tree / "su").stat().st_mode & 0o7777 == 0o755
    assert (tree / "mail").stat().st_mode & 0o7777 == 0o2775
    assert outside.stat().st_mode & 0o7777 == 0o4755


def test_names_of_the_controllers_own_loop_stay_there() -> None:
    text = (
        "127.0.0.1 localhost\n127.0.1.1 ctl\n::1 ip6-localhost\n10.0.0.1 ctl  # us\n\n# more\n10.0.0.11 bm1\n"
    )
    assert root.foreign_hosts(text) == "10.0.0.1 ctl  # us\n10.0.0.11 bm1\n"


def test_every_change_makes_another_image() -> None:
    """So that none is taken from the cache for another site's."""
    base = SiteRecipe(site=site())
    others = [
        SiteRecipe(suite="trixie", site=site()),
        SiteRecipe(site=site(), packages=("vim-tiny",)),
        SiteRecipe(site=site(passwd="")),
        SiteRecipe(users=Users.SSSD, site=site()),
    ]
    assert len({name_of(recipe) for recipe in (base, *others)}) == 5
    assert name_of(base) == name_of(SiteRecipe(site=site()))
    assert name_of(base).startswith("site-bookworm-")


def test_a_users_kernel_keeps_its_defences() -> None:
    """Only a guest that is emulated, which is nobody's production, goes without."""
    recipe = SiteRecipe(suite="trixie")
    assert "mitigations" not in recipe.cmdline
    guest = GuestImage("k", "i", "d", recipe.cmdline, emulated=recipe.emulated)
    assert guest.cmdline_under("kvm") == recipe.cmdline
    assert "mitigations=off" in guest.cmdline_under("qemu")


def test_each_unit_starts_a_program_that_is_there() -> None:
    units = [path for path in FILES.iterdir() if path.suffix == ".service"]
    assert len(units) > 5
    for unit in units:
        words = [
            line.partition("=")[2].lstrip("-") for line in unit.read_text().splitlines() if "Exec" in line
        ]
        for program in (word.split()[0] for word in words):
            if program.startswith("/usr/local/sbin/"):
                assert (FILES / Path(program).name).exists(), program


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--salt", "--profile", "site"], "--salt is for --profile lab"),
        (["--users", "files"], "--users is for --profile site"),
        (["--from", "/etc"], "--from is for --profile site"),
        (["--profile", "site", "--output", "/"], "/ is there already"),
        (["--profile", "site", "--output", "/nowhere/image"], "/nowhere is not there; make it"),
        (["--profile", "site", "--from", "/nowhere"], "/nowhere/passwd cannot be read: No such file"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", "build", *words]) == 1
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1


def test_the_sites_files_are_read(tmp_path: Path) -> None:
    """Names and the time zone too; of a directory service, its settings."""
    (tmp_path / "sssd").mkdir()
    for name in ("passwd", "group", "hosts", "sssd/sssd.conf"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "localtime").symlink_to("/usr/share/zoneinfo/Europe/Paris")
    found = site_files(tmp_path, Users.SSSD)
    assert found["sssd/sssd.conf"] == "sssd/sssd.conf\n"
    assert found["localtime"] == "Europe/Paris"
    assert "passwd" not in found


def test_a_password_of_the_directory_service_gets_into_no_image(tmp_path: Path) -> None:
    """Every job on the hosts can read the disk; the line and the remedy are told, the password is not."""
    conf = tmp_path / "sssd/sssd.conf"
    conf.parent.mkdir()
    conf.write_text("[domain/x]\n# ldap_default_authtok = none\nldap_default_authtok_type = password\n")
    assert "authtok_type" in site_files(tmp_path, Users.SSSD)["sssd/sssd.conf"]
    with conf.open("a") as more:
        more.write("  LDAP_default_authtok=s3cret\n")
    with pytest.raises(LabError, match=f"^{conf}:4: ldap_default_authtok is a password") as refused:
        site_files(tmp_path, Users.SSSD)
    assert "s3cret" not in str(refused.value)


def test_an_image_is_put_whole_and_never_over_another(tmp_path: Path) -> None:
    """Disks of instances lean on the one that is there."""
    built = tmp_path / "cache"
    built.mkdir()
    for name in ("vmlinuz", "initrd", "disk.raw"):
        (built / name).write_text(name)
    source = GuestImage(*(str(built / name) for name in ("vmlinuz", "initrd", "disk.raw")))
    there = put(source, tmp_path / "image")
    assert Path(there.disk) == tmp_path / "image/disk.raw"
    assert Path(there.disk).read_text() == "disk.raw"
    assert str(tmp_path / "image") in (tmp_path / "image/image.json").read_text()
    with pytest.raises(LabError, match="is there already"):
        put(source, tmp_path / "image")
    with pytest.raises(LabError, match="is there already"):
        check_place(tmp_path / "image")
    assert sorted(os.listdir(tmp_path)) == ["cache", "image"]
