"""The catalogue: who may ask for which environment, and whether images are what they should be."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from backfill.core.model.cluster import Job, JobState
from backfill.core.model.refusals import Reason
from backfill.core.model.sentences import sentence
from backfill.core.policies.environments import Environment, Environments
from backfill.ui.cli import main
from backfill.ui.parser import BAD_DATA, NO, OK

CATALOGUE = Environments(
    (Environment("root6", "rocky", users=("ada",), accounts=("hep",)), Environment("plain"))
)
POLICY = """\
cluster: c1
priorities: {{low: [htc]}}
hosts: [{{name: bm1, provider: libvirt, uri: "test:///default"}}]
instances:
  names: vn[1-4]
  addresses: 10.0.1.1/16
  flavour: {{cpus: 2, memory_mb: 512}}
environments:
  entries: [{{name: root6, users: [ada]}}]
libvirt:
  directory: /shared
  bridge: br0
  surroundings: {{controller: 10.0.0.1, conf_server: "10.0.0.1:6817", munge_key: /etc/munge.key}}
  images:
    default: {{kernel: {disk}, initrd: {disk}, disk: {disk}, cmdline: quiet, sha256: "{sha256}"}}
"""


def job(user: str, account: str, features: str) -> Job:
    return Job("7", 7, "htc", JobState.PENDING, user=user, account=account, features=features)


@pytest.mark.parametrize(
    ("user", "account", "features", "allowed"),
    [
        ("ada", "chem", "root6", True),
        ("bob", "hep", "backfill&root6", True),
        ("bob", "chem", "[root6|plain]", False),
        ("bob", "chem", "root6*2", False),
        ("bob", "chem", "root66", True),
        ("bob", "", "plain", True),
        ("bob", "chem", "", True),
    ],
)
def test_only_those_who_may_get_an_environment(user: str, account: str, features: str, allowed: bool) -> None:
    """By user or by account; what is not asked for is not looked at."""
    why = CATALOGUE.refusal(job(user, account, features))
    assert (why is None) is allowed
    if why:
        assert "it is for user ada, account hep" in sentence(why)
    refused: dict[str, Reason] = {}
    assert bool(list(CATALOGUE.admit([job(user, account, features)], refused))) is allowed
    assert bool(refused) is not allowed


def test_an_environment_is_an_image() -> None:
    """A fleet may be ordered by either name."""
    assert CATALOGUE.image_of("root6") == "rocky"
    assert CATALOGUE.image_of("rocky") == "rocky"
    assert CATALOGUE.image_of("") == ""


def policy(tmp_path: Path, content: bytes, promised: bytes) -> Path:
    disk = tmp_path / "disk.raw"
    disk.write_bytes(content)
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.format(disk=disk, sha256=hashlib.sha256(promised).hexdigest()))
    return path


@pytest.mark.parametrize(("content", "status"), [(b"good", OK), (b"tampered", NO)])
def test_a_changed_image_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, status: int
) -> None:
    """The checksum in the policy file is the judge."""
    path = policy(tmp_path, content, b"good")
    assert main(["images", "check", "--config", str(path), "--json"]) == status
    (image,) = json.loads(capsys.readouterr().out)["images"]
    assert ("is not what the policy file promises" in image["problem"]) is (status == NO)
    assert main(["images", "check", "--config", str(path)]) == status
    assert "root6 for ada" in capsys.readouterr().out


def test_the_list_shows_who_may_ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without reading the images themselves."""
    path = policy(tmp_path, b"x", b"y")
    assert main(["images", "list", "--config", str(path)]) == OK
    assert capsys.readouterr().out == "default (linked, default) root6 for ada\n"


def test_a_policy_file_with_mistakes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As everywhere: every mistake with its line."""
    path = tmp_path / "policy.yaml"
    path.write_text("cluster: 7\n")
    assert main(["images", "list", "--config", str(path)]) == BAD_DATA
    assert "policy.yaml:1" in capsys.readouterr().err
