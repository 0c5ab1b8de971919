"""`backfill cloud template`: a Heat template out of the policy file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from backfill.ui.cli import main
from tests.unit.policy_files import text
from tests.unit.test_cloud_applying import PUBLIC_KEY
from tests.unit.test_config_openstack import HOSTS, SECTION

INSIDE = SECTION.replace("controller: 10.0.0.1", "controller: 10.0.200.1")


def test_the_template_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every reference names a resource; the controller has its address; all hosts are told."""
    file = tmp_path / "policy.yaml"
    file.write_text(text(INSIDE, hosts=HOSTS))
    public_key = tmp_path / "key.pub"
    public_key.write_text(f"{PUBLIC_KEY}\n")
    words = ["--external", "public", "--public-key", str(public_key)]
    assert main(["cloud", "template", "--config", str(file), *words]) == 0
    made = yaml.safe_load(capsys.readouterr().out)
    kinds = {r["type"] for r in made["resources"].values()}
    assert kinds == {
        "OS::Neutron::Net",
        "OS::Neutron::Subnet",
        "OS::Neutron::SecurityGroup",
        "OS::Neutron::Port",
        "OS::Nova::Server",
        "OS::Neutron::Router",
        "OS::Neutron::RouterInterface",
        "OS::Neutron::FloatingIP",
        "OS::Nova::KeyPair",
    }
    port = made["resources"]["controller_port"]["properties"]
    assert port["fixed_ips"] == [{"ip_address": "10.0.200.1"}]
    hosts = {"ctl": "10.0.200.1"} | {f"vn{n}": f"10.0.1.{n}" for n in range(1, 5)}
    assert made["outputs"]["hosts"]["value"] == hosts
    controller = made["resources"]["controller"]["properties"]
    assert controller["key_name"] == {"get_resource": "key"}
    born = yaml.safe_load(controller["user_data"])
    assert born["write_files"][0]["content"].splitlines() == [f"{ip} {name}" for name, ip in hosts.items()]
    for resource in made["resources"].values():
        assert set(resource.get("depends_on", [])) <= set(made["resources"])


def test_only_a_public_key_goes_into_the_cloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A private key, several keys, or no file: one sentence each."""
    policy, key = tmp_path / "policy.yaml", tmp_path / "key"
    policy.write_text(text(INSIDE, hosts=HOSTS))
    for content, words in (
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz\n", "it is not one public key; give the .pub"),
        (f"{PUBLIC_KEY}\n{PUBLIC_KEY}\n", "it is not one public key"),
        ("", "it is not one public key"),
    ):
        key.write_text(content)
        assert main(["cloud", "template", "--config", str(policy), "--public-key", str(key)]) == 65
        assert words in capsys.readouterr().err
    assert main(["cloud", "template", "--config", str(policy), "--public-key", f"{key}.no"]) == 65
    assert "it cannot be read" in capsys.readouterr().err


def test_of_several_clouds_one_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """None is taken by chance; a template is for any of them."""
    hosts = HOSTS.replace("}]", "}, {name: w, provider: openstack, node: null, cloud: west}]")
    file, missing = tmp_path / "policy.yaml", tmp_path / "clouds.yaml"
    file.write_text(text(INSIDE.replace("network:", f"clouds_yaml: {missing}\n  network:"), hosts=hosts))
    for words, status, said in (
        (["apply"], 65, "its hosts are in the clouds mycloud, west; name one by --cloud"),
        (["remove", "--cloud", "south"], 65, "no host is in cloud south; choose one of mycloud, w"),
        (["apply", "--cloud", "west"], 1, f"{missing}: it cannot be read"),
        (["template"], 0, ""),
    ):
        assert main(["cloud", *words, "--config", str(file)]) == status
        assert said in capsys.readouterr().err


def test_without_openstacksdk_the_extra_is_named(tmp_path: Path) -> None:
    """It is only needed to speak with a cloud, not to write a template."""
    file = tmp_path / "policy.yaml"
    file.write_text(text(INSIDE, hosts=HOSTS))
    hidden = "import sys; sys.modules |= dict.fromkeys(('openstack', 'keystoneauth1'))"
    for verb, status, said in (
        ("apply", 69, "backfill: openstack is not installed; pip install 'backfill[openstack]'"),
        ("template", 0, ""),
    ):
        words = ["cloud", verb, "--config", str(file)]
        run = f"{hidden}; from backfill.ui.cli import main; sys.exit(main({words}))"
        done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True)
        assert done.returncode == status
        assert done.stderr.startswith(said)
        assert "Traceback" not in done.stderr


def test_what_is_missing_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A policy without a cloud; a controller outside the network; a file with mistakes."""
    file = tmp_path / "policy.yaml"
    for content, words in (
        (text(), "no host has provider: openstack"),
        (text(SECTION.replace("10.0.0.1", "192.0.2.1"), hosts=HOSTS), "outside the instances'"),
        (text("openstak: 1"), "openstak is not a known key"),
    ):
        file.write_text(content)
        assert main(["cloud", "template", "--config", str(file)]) == 65
        assert words in capsys.readouterr().err
