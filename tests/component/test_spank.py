"""The SPANK plugin: compiled for a release, put into plugstack.conf and taken out, or refused as a whole."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from backfill.core.model.cluster import SlurmVersion
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.spank.build import SpankError, build_plugin, release_of
from backfill.drivers.slurm.spank.install import LINES, PLUGIN, Spank
from backfill.ports.errors import BadOutputError, RefusedError

_SBATCH = """#!/bin/sh
case "$1" in
--version) echo "slurm-wlm {release}";;
--help) grep -q spank {plugstack} && echo "{help}";;
esac
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def spank(
    home: Path, shown: str = "  --vm-per-node=number", release: str = "22.05.8", at: str = "spank"
) -> Spank:
    """The plugin of a machine whose sbatch shows this in its help once it is included."""
    tools, plugstack = home / "bin", home / "plugstack.conf"
    tools.mkdir(exist_ok=True)
    sbatch = tools / "sbatch"
    sbatch.write_text(_SBATCH.format(release=release, plugstack=plugstack, help=shown))
    sbatch.chmod(0o755)
    return Spank(SlurmTools(bin_dir=tools), plugstack, home / at)


def files(home: Path) -> Mapping[str, bytes]:
    """Everything but the tools."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and "bin" not in path.parts
    }


@pytest.mark.parametrize(
    ("said", "release"),
    [
        ("slurm-wlm 22.05.8\n", SlurmVersion(22, 5, 8)),
        ("slurm 24.11.5", SlurmVersion(24, 11, 5)),
        ("26.05.0-0rc1", SlurmVersion(26, 5, 0)),
    ],
)
def test_the_release_is_that_of_the_tools(said: str, release: SlurmVersion) -> None:
    """However a distribution calls it."""
    assert release_of(said) == release


def test_what_is_no_release_is_told() -> None:
    """Typed by an admin as well."""
    with pytest.raises(SpankError, match="'newest' names no release of Slurm such as 24"):
        release_of("newest")


def test_the_plugin_says_for_which_release_it_is(home: Path) -> None:
    """By its symbol, which Slurm compares; without a compiler one sentence tells."""
    made = home / "vm.so"
    build_plugin(made, SlurmVersion(24, 11, 5))
    symbols = subprocess.run(["nm", "-D", made], capture_output=True, text=True, check=True).stdout
    assert {"plugin_version", "slurm_spank_init", "slurm_spank_init_post_opt"} <= set(symbols.split())
    assert (24 << 16 | 11 << 8 | 5).to_bytes(4, "little") in made.read_bytes()
    with pytest.raises(SpankError, match="there is no nocc here; install it"):
        build_plugin(made, SlurmVersion(24, 11, 5), "nocc")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (subprocess.TimeoutExpired("cc", 60.0), "cc has not compiled .* within 60 s; is the machine busy"),
        (PermissionError(13, "Permission denied"), "cc cannot be run: .*Permission denied"),
    ],
)
def test_a_compiler_that_hangs_or_cannot_be_run_is_one_sentence(
    home: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fails(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr("backfill.drivers.slurm.spank.build.shutil.which", lambda _: "/usr/bin/cc")
    monkeypatch.setattr("backfill.drivers.slurm.spank.build.subprocess.run", fails)
    with pytest.raises(SpankError, match=said):
        build_plugin(home / "vm.so", SlurmVersion(24, 11, 5), "cc")
    assert not (home / "vm.so").exists()


# What of Slurm the plugin uses. Each word is one of its options, as --name=value; after `:` come those of
# the next component. For each the job's control environment is printed, as sbatch would send it.
_TOOL = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct option { char *name, *arginfo, *usage; int has_arg, val; int (*cb)(int, const char *, int); };
static struct option *known[32];
static int many;
static char environment[1100] = "-";

int spank_context(void) { return 3; }
int spank_option_register(void *spank, struct option *option) { known[many++] = option; return 0; }
int spank_job_control_setenv(void *spank, const char *name, const char *value, int over) {
    snprintf(environment, sizeof environment, "%s=%s", name, value);
    return 0;
}
int spank_job_control_unsetenv(void *spank, const char *name) { strcpy(environment, "-"); return 0; }
void slurm_error(const char *format, ...) {}

int main(int count, char **words) {
    void *plugin = dlopen(words[1], RTLD_NOW);
    int (*init)(void *, int, char **) = dlsym(plugin, "slurm_spank_init");
    int (*post_opt)(void *, int, char **) = dlsym(plugin, "slurm_spank_init_post_opt");
    init(0, 0, 0);
    for (int i = 2; i <= count; i++) {
        if (i == count || !strcmp(words[i], ":")) {
            if (post_opt(0, 0, 0)) return 1;
            puts(environment);
            continue;
        }
        char *value = strchr(words[i], '=');
        if (value) *value++ = 0;
        for (int k = 0; k < many; k++)
            if (!strcmp(known[k]->name, words[i] + 2) && known[k]->cb(known[k]->val, value, 0)) return 2;
    }
    return 0;
}
"""


def sent(home: Path, *words: str) -> list[str]:
    """What is sent of each component of a job with these options."""
    (home / "tool.c").write_text(_TOOL)
    compiler = ["gcc", "-rdynamic", "-o", str(home / "tool"), str(home / "tool.c"), "-ldl"]
    subprocess.run(compiler, check=True, capture_output=True)
    build_plugin(home / "vm.so", SlurmVersion(24, 11, 5))
    argv = [str(home / "tool"), str(home / "vm.so"), *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()


def test_each_component_of_a_heterogeneous_job_has_its_own_options(home: Path) -> None:
    """And none of those before; of an option that is given again the last value counts."""
    first = ("--vcpu-per-vm=2", "--vcpu-per-vm=4", "--ivshmem", "--ivshm-sz=128,256", "--vm-place=spread")
    second = ("--sriov", "--ivshmem")
    assert sent(home, *first, ":", *second, ":", ":", "--mem-per-vm=2G") == [
        "BACKFILL_VM=cpus=4,ivshmem=128+256,place=spread",
        "BACKFILL_VM=sriov=1,ivshmem=256",
        "-",
        "BACKFILL_VM=mem=2048",
    ]


@pytest.mark.parametrize("sites", [None, "", "# the site's\noptional x.so", "include a/*\n"])
def test_installed_and_removed_is_never(home: Path, sites: str | None) -> None:
    """The site's lines are the same bytes, and a file that was not there is not left there."""
    if sites is not None:
        (home / "plugstack.conf").write_text(sites)
    before = files(home)
    for _ in range(2):
        spank(home).install()
    assert (home / "plugstack.conf").read_text().count(f"include {home}/spank/*.conf") == 1
    assert f"optional {home}/spank/{PLUGIN}" in (home / "spank" / LINES).read_text()
    status = spank(home).status()
    assert (status.installed, status.release, status.problems) == (True, "22.05.8", ())
    for _ in range(2):
        spank(home).remove()
    left = files(home)
    if sites and not sites.endswith("\n"):
        left = {name: data.removesuffix(b"\n") for name, data in left.items()}
    assert left == before
    assert not spank(home).status().installed


def test_users_find_it_whatever_our_umask(home: Path) -> None:
    before = os.umask(0o077)
    try:
        spank(home, at="new/lib/spank").install()
    finally:
        os.umask(before)
    for place in (home / "new", home / "new/lib", home / "new/lib/spank"):
        assert place.stat().st_mode & 0o777 == 0o755
    assert (home / "plugstack.conf").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("taken", [True, False])
def test_a_link_and_a_mode_of_the_sites_stay(home: Path, taken: bool) -> None:
    """plugstack.conf may be a link to a place that machines share, and closed to others."""
    shared, link = home / "shared", home / "plugstack.conf"
    shared.write_text("# the site's\n")
    shared.chmod(0o640)
    link.symlink_to("shared")
    ours = spank(home, "  --vm-per-node=number" if taken else "nothing")
    with contextlib.nullcontext() if taken else pytest.raises(RefusedError):
        ours.install()
    assert link.is_symlink()
    assert shared.stat().st_mode & 0o777 == 0o640
    assert (ours.include in shared.read_text()) is taken
    ours.remove()
    assert (link.is_symlink(), shared.read_text()) == (True, "# the site's\n")


def test_what_slurm_does_not_take_is_put_back(home: Path) -> None:
    """A first time and over one that was there."""
    (home / "plugstack.conf").write_text("# the site's\n")
    before = files(home)
    with pytest.raises(RefusedError, match="has no --vm-per-node; all is as it was before"):
        spank(home, "nothing").install()
    assert files(home) == before
    spank(home).install()
    before = files(home)
    with pytest.raises(RefusedError):
        spank(home, "nothing", "24.11.5").install()
    assert files(home) == before


def test_what_is_wrong_is_told(home: Path) -> None:
    """An upgrade of Slurm, a file that is gone, a line that is gone, files that are nonsense."""
    spank(home).install()
    (problem,) = spank(home, release="24.11.5").status().problems
    assert "is built for Slurm 22.05.8 and the tools here are 24.11.5" in problem
    (home / "spank" / PLUGIN).unlink()
    assert spank(home).status().problems == (f"there is no {home}/spank/{PLUGIN}",)
    (home / "plugstack.conf").write_text("# the site's\n")
    assert "does not have the line" in spank(home).status().problems[0]
    (home / "spank" / LINES).write_text("nonsense")
    assert not spank(home).status().installed


def test_odd_words_of_sbatch_are_no_release(home: Path) -> None:
    """Its path is told; nothing is built, written or packed."""
    spank(home).install()
    before = files(home)
    odd = spank(home, release="unknown")
    for act in (odd.status, odd.install, lambda: odd.package(home / "vm.tar.gz")):
        with pytest.raises(BadOutputError) as caught:
            act()
        assert str(caught.value) == (
            f"{home}/bin/sbatch: its --version 'slurm-wlm unknown' names no release of Slurm such "
            "as 24.11.5; see what is installed there, and slurm.bin_dir in the policy file"
        )
    assert files(home) == before


def test_an_archive_for_login_nodes(home: Path) -> None:
    """Of their release, with the paths of the files there; nothing else is left here."""
    told = spank(home).package(home / "vm.tar.gz", SlurmVersion(24, 11, 5))
    assert "is for Slurm 24.11.5" in told[0]
    assert f"include {home}/spank/*.conf" in told[1]
    with tarfile.open(home / "vm.tar.gz") as archive:
        names = archive.getnames()
        lines = archive.extractfile(names[1])
        assert lines is not None
        assert lines.read().decode().startswith("# Built for Slurm 24.11.5\noptional /")
    assert names == [str(home / "spank" / name).lstrip("/") for name in (PLUGIN, LINES)]
    assert set(files(home)) == {"vm.tar.gz"}
