"""`backfill provision` and `backfill drift`: a look through the daemon first, Salt for the rest."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backfill.core.model.lifecycle import Phase
from backfill.ui.cli import main
from tests.component.living_daemon import LivingDaemon, living
from tests.unit import policy_files

# Salt's side of the line: what it is told to answer, by verb; and notes what it was asked.
_STUB = """
import json, sys
told = json.load(open(sys.argv[1]))
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    open(sys.argv[1] + ".asked", "a").write(line)
    print(json.dumps({"number": asked["number"], **told[asked["verb"]]}), flush=True)
"""
LIMITS = {"ret": {"a": {"__id__": "limits", "result": True, "changes": {"x": 1}}}, "retcode": 0}
TOLD = {
    "keys": {"accepted": ["vn1.g1", "bm1"]},
    "again": {"answers": {}},
    "apply": {"answers": {"vn1.g1": LIMITS, "bm1": LIMITS}},
}


class Site:
    """A daemon with a node at work, and a policy file with a master of Salt's."""

    def __init__(self, folder: Path, daemon: LivingDaemon) -> None:
        self.daemon = daemon
        self._asked = folder / "told.asked"
        (folder / "told").write_text(json.dumps(TOLD))
        (folder / "stub.py").write_text(_STUB)
        python = folder / "python"
        python.write_text(f"#!/bin/sh\nexec {sys.executable} {folder}/stub.py {folder}/told\n")
        python.chmod(0o755)
        salt = f"salt: {{python: {python}, config: /etc/salt/master}}"
        self.policy = folder / "policy.yaml"
        self.policy.write_text(
            policy_files.text(salt, f"daemon: {{socket: {daemon.socket}, state_dir: {folder}}}")
        )
        daemon.provisioner.enrol("vn1", 1, "10.77.1.1/16")
        daemon.sim.submit("htc", 5000.0)
        daemon.until(lambda: daemon.phase("vn1") is Phase.READY)

    def run(self, *argv: str) -> int:
        """One command."""
        return main([*argv, "--config", str(self.policy)])

    def asked(self, verb: str = "") -> list[dict[str, Any]]:
        """What Salt was asked for."""
        lines = self._asked.read_text().splitlines() if self._asked.exists() else []
        return [a for a in map(json.loads, lines) if verb in ("", a["verb"])]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with living(tmp_path) as daemon:
        yield Site(tmp_path, daemon)


Capture = pytest.CaptureFixture[str]


def test_a_node_that_is_as_it_should_be_costs_its_minion_nothing(site: Site, capsys: Capture) -> None:
    assert site.run("provision", "vn1") == 0
    (row,) = capsys.readouterr().out.splitlines()[1:]
    assert row.split("  ")[0] == "vn1"
    assert "as they should be" in row
    assert "nothing was run" in row
    assert site.asked() == []


def test_a_node_that_differs_is_run_at_once(site: Site, capsys: Capture) -> None:
    """Its minion is not asked to look again."""
    site.daemon.sim.provider.unlike["vn1"] = "/etc/hosts differs"
    assert site.run("provision", "vn1", "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)["nodes"]
    assert (told["changed"], told["looked"]) == ([["limits", ""]], False)
    assert site.asked("again") == []
    assert site.asked("apply")[0]["ids"] == ["vn1.g1"]


def test_whoever_wants_a_run_gets_it(site: Site) -> None:
    """What no look compares, such as a mount's options, may have been changed on the node."""
    assert site.run("provision", "vn1", "--force") == 0
    assert [a["verb"] for a in site.asked()] == ["keys", "keys", "apply"]


def test_whom_the_daemon_cannot_see_salt_is_asked_about(site: Site, capsys: Capture) -> None:
    """Bare metal; a name that nobody knows is refused before anything is run."""
    assert site.run("drift", "--json") == 1
    told = {node["node"]: node for node in json.loads(capsys.readouterr().out)["nodes"]}
    assert (told["vn1"]["looked"], told["bm1"]["looked"]) == (True, False)
    (order,) = site.asked("apply")
    assert (order["ids"], order["test"]) == (["bm1"], True)
    assert site.run("provision", "vn[1-2]") == 1
    assert "'vn2'" in capsys.readouterr().err
    assert len(site.asked("apply")) == 1


def test_without_a_daemon_salt_is_asked(site: Site) -> None:
    """Nothing is believed that was not seen now; the order is carried out all the same."""
    site.daemon.provisioner.expel("vn1", 1)
    assert site.run("provision", "vn1") == 0
    site.policy.write_text(site.policy.read_text().replace("daemon.sock", "nobody.sock"))
    assert site.run("provision", "vn1") == 0
    assert [a["ids"] for a in site.asked("apply")] == [["vn1.g1"]] * 2


def test_a_guest_that_does_not_run_cannot_be_seen(site: Site) -> None:
    site.daemon.sim.provider.pause(site.daemon.sim.instance("vn1").host, "vn1")
    assert site.run("provision", "vn1") == 0
    assert len(site.asked("apply")) == 1
