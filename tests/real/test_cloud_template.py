"""The Heat template, judged by Heat's own engine in an environment of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import backfill.lab.cloud
from backfill.lab.cloud import environment, heat
from backfill.ui.cli import main
from tests.component.test_cloud_template import INSIDE
from tests.unit.policy_files import text
from tests.unit.test_cloud_applying import PUBLIC_KEY
from tests.unit.test_config_openstack import HOSTS

pytestmark = [pytest.mark.real, pytest.mark.gate]
CHECK = Path(backfill.lab.cloud.__file__).parent / "inside" / "heat_check.py"


def _judged(template: str, where: Path) -> subprocess.CompletedProcess[str]:
    python = environment.ensure(lock=heat.LOCK) / "bin/python"
    file = where / "cluster.yaml"
    file.write_text(template)
    return subprocess.run([str(python), str(CHECK), str(file)], capture_output=True, text=True, timeout=600)


def test_heat_accepts_it_and_would_notice_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All resources with their properties; a wrong property or reference is refused."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(text(INSIDE, hosts=HOSTS))
    public_key = tmp_path / "key.pub"
    public_key.write_text(PUBLIC_KEY)
    words = ["--external", "public", "--public-key", str(public_key)]
    assert main(["cloud", "template", "--config", str(policy), *words]) == 0
    written = capsys.readouterr().out
    judged = _judged(written, tmp_path)
    assert judged.returncode == 0, judged.stderr
    assert judged.stdout == "11\n"
    for right, wrong in (
        ("cidr:", "cidrr:"),
        ("get_resource: subnet", "get_resource: subnt"),
        ("- floating_ip_address", "- floating_ip_adress"),
    ):
        assert right in written
        refused = _judged(written.replace(right, wrong), tmp_path)
        assert refused.returncode != 0
        assert wrong.rpartition(" ")[2].rstrip(":") in refused.stderr
