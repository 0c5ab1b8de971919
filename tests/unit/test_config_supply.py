"""Pilots on demand in the policy file: what they cannot do without is asked for, in its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.config.load import load
from backfill.ui.commands.file_check import check_files
from tests.unit.policy_files import sentences, text

POOL = "condor: {collector: 'cm.example.org:9618'}"
GOOD = "most: 4, user: nobody, partition: htc, script: /etc/hostname"
BAD = [
    ("most: 4, user: nobody, partition: htc", "supply.script is not set, and supply.most is 4"),
    ("most: 4, user: root, partition: htc, script: /p.sh", "supply.user is root; name an ordinary user"),
    ("most: 4, user: nobody, partition: big, script: /p.sh", "supply.partition is big, which is not in"),
    (f"{GOOD}, shortest_s: 90000", "supply.shortest_s is more than supply.longest_s = 86400 s; lower it"),
    (f"{GOOD}, options: ['-A osg']", "supply.options[0] is -A osg, which is no long option of sbatch"),
    (f"{GOOD}, options: ['--time=5']", "is --time=5, by which pilots are told apart and limited"),
    ("most: -1", "supply.most is '-1', which is negative"),
]


@pytest.mark.parametrize(("inner", "words"), BAD)
def test_what_cannot_be_is_refused(tmp_path: Path, inner: str, words: str) -> None:
    """One sentence, with the place and what to do."""
    found = sentences(tmp_path, text(f"{POOL}\nsupply: {{{inner}}}"))
    assert len(found) == 1, found
    assert words in found[0]
    assert found[0].startswith("policy.yaml:")


def test_pilots_need_a_pool(tmp_path: Path) -> None:
    """Without the section nobody could be asked what waits."""
    (found,) = sentences(tmp_path, text(f"supply: {{{GOOD}}}"))
    assert "supply.most is 4, and no pool is named; add the section condor with its collector" in found


def test_a_good_one_is_taken(tmp_path: Path) -> None:
    """And it is off where it says nothing."""
    path = tmp_path / "policy.yaml"
    path.write_text(text(f"{POOL}\nsupply: {{{GOOD}}}"))
    assert load(path).policies.supply.on
    path.write_text(text(POOL))
    assert not load(path).policies.supply.on


def test_user_and_script_are_looked_for_on_the_machine(tmp_path: Path) -> None:
    """Each that is missing gets a sentence with its line."""
    path = tmp_path / "policy.yaml"
    path.write_text(text(f"{POOL}\nsupply: {{most: 1, user: nosuch, partition: htc, script: /nosuch.sh}}"))
    found = [said for said in check_files(load(path)) if "supply" in said]
    assert "supply.script: /nosuch.sh cannot be read: No such file or directory" in found[0]
    assert "supply.user is nosuch, and this machine knows no such user; name an ordinary user" in found[1]


@pytest.mark.parametrize(
    "where", ["cm", "cm.example.org:9618", "10.0.0.1", "[fd00::1]:9618", "cm1, cm2:9618"]
)
def test_where_a_collector_may_be(tmp_path: Path, where: str) -> None:
    """A host, or host:port; more than one of a pool that has two."""
    assert not sentences(tmp_path, text(f"condor: {{collector: '{where}'}}"))


@pytest.mark.parametrize("where", ["cm:96x8", "cm:0", "cm:70000", "<10.0.0.1:9618>", "https://cm", "a b", ""])
def test_where_no_collector_can_be(tmp_path: Path, where: str) -> None:
    """Told by the file, not by a pool that does not answer."""
    (found,) = sentences(tmp_path, text(f"condor: {{collector: '{where}'}}"))
    assert "condor.collector is" in found
    assert "write a host, or host:port, such as cm.example.org:9618" in found
