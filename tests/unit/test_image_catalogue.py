"""The image catalogue in a file of its own: read, checked with its own lines, and decided by."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from backfill.config import ConfigError, load
from backfill.core.policies.cloning import Choice
from backfill.core.policies.environments import Environment
from backfill.drivers.slurm.hooks.submit_lua import Gate
from backfill.ui import slurm_parts
from backfill.ui.cli import main
from backfill.ui.parser import BAD_DATA, OK
from tests.unit.policy_files import LIBVIRT, LIBVIRT_HOST, ROOT, text

FILES = "kernel: /k, initrd: /i, disk: /d, cmdline: quiet"
NAMED = LIBVIRT.partition("  images:")[0] + "  catalogue: images.yaml\n"
CATALOGUE = f"""\
images:
  default: {{{FILES}, os_family: debian}}
  cms:
    {{{FILES}, environment: cms, os_family: rhel, users: [ada], accounts: [hep], names: "vn[3-4]",
     most_cpus: 2, most_memory_mb: 1GB, method: instant, creates_per_min: 3, user_data: /u}}
"""


def written(where: Path, catalogue: str, policy: str = NAMED) -> Path:
    path = where / "policy.yaml"
    path.write_text(text(policy, hosts=LIBVIRT_HOST))
    (where / "images.yaml").write_text(catalogue)
    return path


def problems(where: Path, catalogue: str, policy: str = NAMED) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(written(where, catalogue, policy))
    return [str(p).replace(f"{where}/", "") for p in caught.value.problems]


def test_the_catalogue_becomes_images_environments_and_rules(tmp_path: Path) -> None:
    """What the driver needs goes to it, what the planner decides by goes there."""
    config = load(written(tmp_path, CATALOGUE))
    assert config.libvirt is not None
    assert sorted(config.libvirt.images) == ["cms", "default"]
    assert config.libvirt.images["cms"].method is Choice.INSTANT
    environments = config.policies.environments
    assert environments.images == ("cms", "default")
    assert environments.entries == (Environment("cms", "cms", ("ada",), ("hep",)),)
    rule = environments.rule("cms")
    assert (rule.names, rule.most_cpus, rule.most_memory_mb) == (("vn3", "vn4"), 2, 1024)
    assert (rule.method, rule.creates_per_min) == ("instant", 3)
    assert environments.features_of("cms") == ("cms", "rhel")
    assert environments.features_of("default") == ("debian",)
    assert environments.reserved("vn3", "default")
    assert environments.reserved("vn1", "cms")


def test_the_same_may_stand_in_the_policy_file(tmp_path: Path) -> None:
    """With the same meaning."""
    inline = NAMED.replace("  catalogue: images.yaml\n", "") + "".join(
        f"  {line}\n" for line in CATALOGUE.splitlines()
    )
    there, here = load(written(tmp_path, CATALOGUE)), load(written(tmp_path, "", inline))
    assert here.policies == there.policies
    assert here.libvirt is not None
    assert there.libvirt is not None
    assert here.libvirt.images == there.libvirt.images


def test_nodes_carry_the_features_of_their_image(tmp_path: Path) -> None:
    """Lines of slurm.conf as well: there a name decides."""
    config = load(written(tmp_path, CATALOGUE))
    features = {spec.name: spec.features for spec in slurm_parts.wanted(config).specs}
    assert features["vn1"] == ("backfill", "debian")
    assert features["vn3"] == ("backfill", "cms", "rhel")
    line = slurm_parts.wanted(config).known_by
    assert line is not None
    assert line.features == ("backfill", "cms", "debian", "rhel")
    flavour = config.policies.instances.flavour
    assert (line.cpus, line.memory_mb) == (flavour.cpus, flavour.node_memory_mb)
    (room,) = slurm_parts.announced(config)
    assert replace(room, name=line.name) == line


@pytest.mark.parametrize(
    ("catalogue", "sentence"),
    [
        (CATALOGUE.replace("disk: /d", "disc: /d", 1), "images.yaml:2:37: images.default.disc is"),
        (CATALOGUE.replace("rhel", "7"), "images.yaml:4:85: images.cms.os_family is the number 7"),
        (CATALOGUE.replace("instant", "copy"), "images.yaml:5:49: images.cms.method is"),
        ("", "images.yaml:1:1: the image catalogue is empty; give images"),
        ("images: [", "images.yaml:1:10: this is not valid YAML"),
        (
            CATALOGUE.replace("vn[3-4]", "vn[3-5]"),
            "images.yaml:4:122: images.cms.names has vn5, which is not in instances.names",
        ),
        (
            CATALOGUE.replace("environment: cms, ", ""),
            "images.yaml:3:3: images.cms.environment is not set, and users or accounts are",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_own_line(tmp_path: Path, catalogue: str, sentence: str) -> None:
    """The file that has the mistake is named, not the one that names the file."""
    assert any(p.startswith(sentence) for p in problems(tmp_path, catalogue)), problems(tmp_path, catalogue)


def test_one_place_only_and_one_that_exists(tmp_path: Path) -> None:
    """Images in both places are refused, and so is a catalogue that is not there."""
    (both,) = problems(tmp_path, CATALOGUE, LIBVIRT + "  catalogue: images.yaml\n")
    assert "libvirt.catalogue is set, and libvirt.images is there too; keep one of them" in both
    (gone,) = problems(tmp_path, CATALOGUE, NAMED.replace("images.yaml", "other.yaml"))
    assert gone.startswith("other.yaml: the image catalogue cannot be read: No such file")


def test_the_sample_is_what_the_list_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """config/policy.yaml names config/images.yaml."""
    sample = str(ROOT / "config/policy.yaml")
    assert main(["images", "list", "--config", sample, "--json"]) == OK
    default, cms = sorted(
        json.loads(capsys.readouterr().out)["images"], key=lambda i: i["name"], reverse=True
    )
    assert (default["name"], default["method"], default["os_family"]) == ("default", "linked", "debian")
    assert (cms["method"], cms["most_cpus"], cms["names"][0]) == ("instant", 8, "vn13")
    assert cms["environments"] == [{"name": "cms", "users": ["ada"], "accounts": ["hep"]}]
    assert main(["images", "list", "--config", sample]) == OK
    assert "cms for ada, hep" in capsys.readouterr().out


def test_a_mistake_in_the_catalogue_is_bad_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For every command that reads the policy file."""
    path = written(tmp_path, "images: 7\n")
    assert main(["images", "list", "--config", str(path)]) == BAD_DATA
    assert "images.yaml:1:9: images is the number 7" in capsys.readouterr().err


def test_submission_is_gated_by_the_catalogue(tmp_path: Path) -> None:
    """Only what somebody may not have needs a gate."""
    config = load(written(tmp_path, CATALOGUE))
    (gate,) = slurm_parts.gates(config.policies.environments)
    assert gate == Gate("cms", ("ada",), ("hep",), gate.whose)
    assert gate.whose == "may not have environment cms: it is for user ada, account hep"
    odd = Gate("a", ('x"\\', "ü"), (), "no")
    assert odd.lua().splitlines()[0] == (
        '  ["a"] = { users = { ["x\\034\\092"] = true, ["\\195\\188"] = true }, accounts = {  },'
    )
