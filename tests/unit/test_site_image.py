"""The image of a site: whose users are in it, what nobody may do there, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from backfill.lab import debian, guestroot, image
from backfill.lab.image import GuestImage
from backfill.lab.siteimage import build, recipe, root
from backfill.lab.siteimage.build import check_place, name_of, put
from backfill.lab.siteimage.people import merged
from backfill.lab.siteimage.recipe import FILES, SiteRecipe, Users, site_files, source_text
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
        SiteRecipe(site=site(), sources=("deb http://packages.example bookworm main",)),
    ]
    assert len({name_of(recipe) for recipe in (base, *others)}) == 6
    assert name_of(base) == name_of(SiteRecipe(site=site()))
    assert name_of(base).startswith("site-bookworm-")


def test_another_hook_makes_another_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is compiled into each image."""
    before = name_of(SiteRecipe(site=site()))
    (tmp_path / "hook.c").touch()
    monkeypatch.setattr(recipe, "HOOK_SOURCE", tmp_path / "hook.c")
    assert name_of(SiteRecipe(site=site())) != before


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of built images, with one of the plain recipe in it."""
    monkeypatch.setenv("BACKFILL_CACHE", str(tmp_path))
    _built_in(image.image_folder() / name_of(SiteRecipe(site=site())))
    return image.image_folder()


def _built_in(folder: Path) -> GuestImage:
    """A whole image, built on a day of the year 2001."""
    folder.mkdir(parents=True)
    made = GuestImage(*(str(folder / name) for name in ("vmlinuz", "initrd", "disk.raw")))
    for name in ("vmlinuz", "initrd", "disk.raw", "packages.lock"):
        (folder / name).write_text(name)
    (folder / "checksums").write_text(image.checksums(folder))
    (folder / "image.json").write_text(json.dumps(asdict(made)))
    os.utime(folder / "image.json", (1e9, 1e9))
    return made


def test_what_comes_from_the_cache_says_from_when_it_is(cache: Path) -> None:
    """Its packages are those of that day."""
    told: list[str] = []
    build.build(SiteRecipe(site=site()), told.append)
    assert len(told) == 1
    assert "from the cache, built on 2001-09-09; --fresh builds it from today's packages" in told[0]


def test_a_fresh_image_is_built_beside_the_others(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks of instances may lean on those; from then on the newest is taken."""
    asked: list[str] = []
    plain = SiteRecipe(site=site())

    def built(name: str, make: object) -> GuestImage:
        asked.append(name)
        return image.cached(name) or _built_in(cache / name)

    monkeypatch.setattr(image, "cached_or_built", built)
    for fresh in (False, True, True, False):
        build.build(plain, fresh=fresh)
    name = name_of(plain)
    assert asked == [name, f"{name}-2", f"{name}-3", f"{name}-3"]


def test_updates_and_the_sites_own_sources_are_installed_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of the security team too, whichever the release is."""
    given: list[str] = []

    def installed(*words: object) -> None:
        sources = words[-1]
        assert isinstance(sources, list)
        given.extend(sources)

    monkeypatch.setattr(debian, "install", installed)
    known = dict.fromkeys(("trixie", "trixie-security"), "http://mirror.example/")
    monkeypatch.setattr(debian, "_known", lambda: known)
    wanted = SiteRecipe(suite="trixie", site=site(), sources=("deb http://packages.example ./",))
    monkeypatch.setattr(guestroot, "add_programs", lambda _: None)
    monkeypatch.setattr(root, "make_site_guest", lambda *_: None)
    monkeypatch.setattr(image, "pack", lambda work, target, described, *_: described)
    monkeypatch.setattr(image, "cached_or_built", lambda name, make: make(tmp_path, tmp_path / name))
    build.build(wanted)
    assert [line.split()[-2] for line in given[:-1]] == ["trixie", "trixie-updates", "trixie-security"]
    assert Path(given[-1]).read_text() == "deb http://packages.example ./\n"
    known.clear()
    with pytest.raises(LabError, match="name one of trixie in /etc/apt, beside --source"):
        build.build(wanted)


def test_a_source_is_a_line_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "site.sources").write_text("Types: deb\n")
    assert source_text(str(tmp_path / "site.sources")) == "Types: deb\n"
    assert source_text("deb http://packages.example ./") == "deb http://packages.example ./"
    with pytest.raises(LabError, match="has a password in its address") as refused:
        source_text("deb https://me:s3cret@packages.example ./")
    assert "s3cret" not in str(refused.value)


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
        (["--source", "deb http://packages.example ./"], "--source is for --profile site"),
        (["--fresh"], "--fresh is for --profile site"),
        (["--profile", "site", "--source", "/nowhere"], "/nowhere is no line that begins with `deb ` and"),
        (["--profile", "site", "--output", "/"], "/ is there already"),
        (["--profile", "site", "--output", "/nowhere/image"], "/nowhere is not there; make it"),
        (["--profile", "site", "--from", "/nowhere"], "/nowhere/passwd cannot be read: No such file"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", "build", *words]) == (64 if " is for --profile " in said else 1)
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


_STUB = "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch site\n"


@pytest.mark.parametrize(
    ("written", "behind", "given"),
    [
        ("search site\nnameserver 10.0.0.2\n", None, "search site\nnameserver 10.0.0.2\n"),
        ("nameserver 127.0.0.1\n nameserver 10.0.0.2\n", None, " nameserver 10.0.0.2\n"),
        (
            _STUB,
            "# by systemd\nnameserver 10.0.0.2\nsearch site\n",
            "# by systemd\nnameserver 10.0.0.2\nsearch site\n",
        ),
        ("# nobody\nsearch site\n", None, ""),
        ("nameserver fe80::1%eth0\n", None, "nameserver fe80::1%eth0\n"),
    ],
)
def test_guests_ask_name_servers_of_the_network(
    written: str, behind: str | None, given: str, tmp_path: Path
) -> None:
    """A service on the controller's own loop is not there in a guest."""
    etc = _etc_with_resolver(tmp_path, written, behind)
    assert site_files(etc, Users.FILES)["resolv.conf"] == given


@pytest.mark.parametrize(
    ("written", "behind", "told"),
    [
        (
            "search site\nnameserver 127.0.0.1\n",
            "nameserver 10.0.0.2\n",
            ":2: nameserver 127.0.0.1 is this machine",
        ),
        ("nameserver ::1\n", None, ":1: nameserver ::1 is this machine"),
        (_STUB, None, ":1: nameserver 127.0.0.53 is this machine"),
        (_STUB, "# none\n", ":1: nameserver 127.0.0.53 is this machine"),
    ],
)
def test_a_name_server_that_no_guest_reaches_is_refused(
    written: str, behind: str | None, told: str, tmp_path: Path
) -> None:
    """With its line, before an image is made in which no name is found."""
    etc = _etc_with_resolver(tmp_path, written, behind)
    with pytest.raises(LabError, match=f"^{etc}/resolv.conf{told}"):
        site_files(etc, Users.FILES)


def _etc_with_resolver(top: Path, written: str, behind: str | None) -> Path:
    etc, run = top / "etc", top / "run/systemd/resolve"
    etc.mkdir()
    for name in ("passwd", "group"):
        (etc / name).touch()
    (etc / "resolv.conf").write_text(written)
    if behind is not None:
        run.mkdir(parents=True)
        (run / "resolv.conf").write_text(behind)
    return etc


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
    """Disks of instances lean on the one that is there; another build for the same folder is left alone."""
    source = _built_in(tmp_path / "cache")
    (tmp_path / ".image.partial").mkdir()
    there = put(source, tmp_path / "image")
    assert Path(there.disk) == tmp_path / "image/disk.raw"
    assert Path(there.disk).read_text() == "disk.raw"
    assert str(tmp_path / "image") in (tmp_path / "image/image.json").read_text()
    assert (tmp_path / "image").stat().st_mode & 0o777 == (tmp_path / "cache").stat().st_mode & 0o777
    with pytest.raises(LabError, match="is there already"):
        put(source, tmp_path / "image")
    with pytest.raises(LabError, match="is there already"):
        check_place(tmp_path / "image")
    assert sorted(os.listdir(tmp_path)) == [".image.partial", "cache", "image"]


@pytest.fixture
def strict() -> Iterator[None]:
    """root's umask at a site that wants nothing to be open by accident."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_what_is_put_into_an_image_is_open_to_its_users_whatever_our_umask(
    strict: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They resolve names by its resolv.conf, and begin our programs."""
    monkeypatch.setenv("BACKFILL_CACHE", str(tmp_path))
    monkeypatch.setattr(image, "_check_tools", lambda: None)
    seen: list[int] = []

    def make(work: Path, target: Path) -> GuestImage:
        (work / "etc").mkdir()
        (work / "etc/resolv.conf").touch()
        seen.extend((work / name).stat().st_mode & 0o777 for name in ("etc", "etc/resolv.conf"))
        return GuestImage("vmlinuz", "initrd", "disk.raw")

    image.cached_or_built("image", make)
    assert [f"{mode:o}" for mode in seen] == ["755", "644"]
    assert os.umask(0o077) == 0o077


def test_the_daemon_and_qemu_can_read_a_copy_whatever_our_umask(strict: None, tmp_path: Path) -> None:
    """Neither of them is root."""
    there = Path(put(_built_in(tmp_path / "cache"), tmp_path / "image").disk).parent
    modes = {path.name: f"{path.stat().st_mode & 0o777:o}" for path in (there, *there.iterdir())}
    assert modes.pop("image") == "755"
    assert set(modes.values()) == {"644"}


def test_a_copy_that_is_not_whole_is_no_image(tmp_path: Path) -> None:
    """And what cannot be written is told; nothing is left of either."""
    source = _built_in(tmp_path / "cache")
    Path(source.disk).write_text("disk")
    with pytest.raises(LabError, match=f"/image is not what was built; .* backfill image verify {tmp_path}"):
        put(source, tmp_path / "image")
    with pytest.raises(LabError, match="File name too long; mend that, or name another by --output"):
        put(source, tmp_path / ("x" * 250))
    assert os.listdir(tmp_path) == ["cache"]


def test_two_builds_for_one_folder_end_with_one_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is told, and does not touch what the first has put there."""
    source, copy = _built_in(tmp_path / "cache"), build._copy

    def meanwhile(what: Path, where: Path) -> None:
        monkeypatch.setattr(build, "_copy", copy)
        put(source, tmp_path / "image")
        copy(what, where)

    monkeypatch.setattr(build, "_copy", meanwhile)
    with pytest.raises(LabError, match="is there already"):
        put(source, tmp_path / "image")
    assert image.problems(tmp_path / "image") == []
    assert sorted(os.listdir(tmp_path)) == ["cache", "image"]
