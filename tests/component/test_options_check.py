"""Options for machines of their own: told when users lack them or they are broken, and to nobody else."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from backfill.config import load
from backfill.config.model import Config
from backfill.drivers.slurm.spank.install import DIRECTORY
from backfill.ui.commands.options_check import check_options

ROOT = Path(__file__).parents[2]
_SBATCH = """#!/bin/sh
case $1 in
--version) echo slurm-wlm 22.05.8;;
--help) {help};;
esac
"""


def site(home: Path, help: str = "echo -o", wanted: bool = True) -> Config:  # noqa: A002  sbatch's own word
    """A policy file beside a Slurm whose sbatch says this for its --help."""
    (home / "bin").mkdir()
    sbatch = home / "bin/sbatch"
    sbatch.write_text(_SBATCH.format(help=help))
    sbatch.chmod(0o755)
    (home / "slurm.conf").write_text("")
    text = (ROOT / "config/policy.minimal.yaml").read_text()
    text += f"own_machines: {{enabled: {str(wanted).lower()}}}\n"
    text += f"slurm: {{conf: {home}/slurm.conf, bin_dir: {home}/bin}}\n"
    path = home / "policy.yaml"
    path.write_text(text)
    return load(path)


def test_a_missing_plugin_is_a_lack_with_its_remedy(tmp_path: Path) -> None:
    """No mistake: there are three more ways to ask."""
    config = site(tmp_path)
    found = check_options(config)
    assert found.problems == ()
    assert f"{tmp_path}/plugstack.conf names no plugin of ours" in found.lack
    assert found.lack.endswith(f"; backfill slurm spank install --config {config.source}")


def test_options_of_a_plugin_elsewhere_are_enough(tmp_path: Path) -> None:
    found = check_options(site(tmp_path, "echo --vm-per-node=number"))
    assert (found.lack, found.problems) == ("", ())


def test_a_line_without_a_plugin_is_a_problem(tmp_path: Path) -> None:
    config = site(tmp_path)
    (tmp_path / "plugstack.conf").write_text(f"include {DIRECTORY}/*.conf\n")
    found = check_options(config)
    assert found.lack == ""
    assert found.problems
    for problem in found.problems:
        what, _, remedy = problem.rpartition("; ")
        assert what.startswith("the plugin for sbatch: ")
        assert shlex.split(remedy)[:4] == ["backfill", "slurm", "spank", "install"]


def test_odd_words_of_sbatch_are_a_problem(tmp_path: Path) -> None:
    """No traceback of a daemon that is only to check its file."""
    config = site(tmp_path)
    (tmp_path / "plugstack.conf").write_text(f"include {DIRECTORY}/*.conf\n")
    (tmp_path / "bin/sbatch").write_text("#!/bin/sh\necho who knows\n")
    (problem,) = check_options(config).problems
    assert f"{tmp_path}/bin/sbatch: its --version 'who knows'" in problem


def test_a_plugstack_conf_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    config = site(tmp_path)
    (tmp_path / "plugstack.conf").mkdir()
    (problem,) = check_options(config).problems
    assert f"{tmp_path}/plugstack.conf cannot be read" in problem


@pytest.mark.parametrize("help_says", ["echo -o", "exit 1"])
def test_nobody_is_told_where_no_job_may_have_any(tmp_path: Path, help_says: str) -> None:
    found = check_options(site(tmp_path, help_says, wanted=False))
    assert (found.lack, found.problems) == ("", ())
