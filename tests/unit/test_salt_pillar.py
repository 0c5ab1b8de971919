"""The keys of the pillar: whatever a state asks for is in the schema, the sample and the page."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from backfill.lab.extras import lab_pillar
from backfill.lab.saltimage import STATES
from backfill.lab.spec import NETWORK, LabSpec

ROOT = Path(__file__).parents[2]
SCHEMA = yaml.safe_load((STATES / "backfill/schema.yaml").read_text())
# As in pillar['backfill']['time'].get('upstream').
_MAY_BE_ABSENT = re.compile(r"pillar\['backfill'\]((?:\['\w+'\])*)\.get\('(\w+)'")


def asked_for() -> set[str]:
    """The keys that states do without."""
    text = "".join(path.read_text() for path in STATES.rglob("*") if path.suffix in (".sls", ".jinja"))
    return {
        ":".join(["backfill", *re.findall(r"\w+", way), key]) for way, key in _MAY_BE_ABSENT.findall(text)
    }


def test_every_optional_key_is_in_the_schema() -> None:
    assert asked_for() == set(SCHEMA["optional"])


def test_the_sample_and_the_page_know_every_optional_key() -> None:
    sample = (STATES / "pillar/backfill.sls").read_text()
    page = (ROOT / "docs/salt.md").read_text()
    for key in SCHEMA["optional"]:
        assert f"# {key.rsplit(':', 1)[-1]}: " in sample, key
        assert f"`{key}`" in page, key


def test_the_sample_has_no_key_that_could_replace_a_sites() -> None:
    """The guard, which asks for one, names it: tests/real/test_salt_states.py."""
    sample = yaml.safe_load((STATES / "pillar/backfill.sls").read_text())["backfill"]
    assert sample["munge"] == {"key_base64": None}
    assert SCHEMA["common"]["backfill:munge:key_base64"] == "string"


def test_a_lab_limits_its_exports_to_its_own_network(tmp_path: Path) -> None:
    (tmp_path / "etc/munge").mkdir(parents=True)
    (tmp_path / "etc/munge/munge.key").write_bytes(b"key")
    values = lab_pillar(LabSpec(name="x", files=True), tmp_path)["backfill"]
    assert values["files"]["networks"] == [NETWORK]
