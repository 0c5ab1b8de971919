"""Which trees of states come to the same at the master and on the node, and which may not."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from backfill.drivers.salt.doubt import doubt
from backfill.lab.saltimage import STATES


def test_our_own_tree_asks_for_what_the_master_knows() -> None:
    assert doubt([str(STATES)]) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sls", "{{ grains['os'] }}"),
        ("a.sls", "{{ grains.get('num_cpus') }}"),
        ("a.sls", "{% if grains['backfill']['kind'] == 'metal' or grains.get('os_family') %}"),
        ("a.sls", "{% if not grains['backfill']['kind'] == 'metal' and grains.get('os_family') %}"),
        ("a.sls", "{{ grains['backfill']['kind'] == 'metal' and grains.get('os_family') }}{{ grains.os }}"),
        ("a.sls", "{% if a or grains['backfill']['kind'] == 'metal' and grains.get('os_family') %}"),
        ("a.sls", "{% set all = grains %}"),
        ("a.sls", "{{ salt['network.ip_addrs']() }}"),
        ("a.sls", "{{ salt.grains.get('os') }}"),
        ("a.jinja", "{{ opts['id'] }}"),
        ("map.txt", "{{ grains.id }}"),
        ("a.sls", "#!py\ndef run():\n    return {}"),
        ("a.sls", "#!jinja|py\n"),
        ("top.sls", "base:\n  'os:Debian':\n    - match: grain\n    - a"),
        ("top.sls", "base:\n  'G@os:Debian':\n    - match: compound\n    - a"),
        ("top.sls", "base:\n  'backfill:role:node':\n    # why\n    - match: grain\n    - a"),
    ],
)
def test_a_tree_that_asks_the_node_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / name).write_text(text)
    assert doubt([str(tmp_path)]) == (
        f"{tmp_path}/deep/{name}, which asks the node itself while it is rendered"
    )


@pytest.mark.parametrize(
    "text",
    [
        "{{ grains['backfill']['node'] }} {{ grains.get('init') }} {{ pillar['salt']['x'] }}",
        "{% if grains['backfill']['kind'] == 'metal' and grains.get('os_family') == 'RedHat' %}",
        "{%- if grains['backfill']['kind'] == 'metal' and grains.get('os_family') in ('Suse',) %}",
        "a:\n  file.managed:\n    - source: salt://a\n    - contents: grains_cache, /etc/salt/x",
        "base:\n  'backfill:role:node':\n    - match: grain\n  'vn*':\n    - match: glob\n",
    ],
)
def test_what_the_master_knows_is_no_doubt(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.sls").write_text(text)
    (tmp_path / "_modules").mkdir()
    (tmp_path / "_modules/own.py").write_text("__grains__['os']")
    (tmp_path / "gone").symlink_to("/nowhere/at/all")
    assert doubt([str(tmp_path)]) is None


def test_a_file_that_was_changed_is_read_anew(tmp_path: Path) -> None:
    place = tmp_path / "a.sls"
    place.write_text("a")
    assert doubt([str(tmp_path)]) is None
    place.write_text("{{ grains.os }}")
    assert doubt([str(tmp_path)])


def test_a_folder_that_cannot_be_read_is_a_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A root that does not exist is none: Salt's defaults name some that nobody has."""
    (tmp_path / "deep").mkdir()

    def scandir(place: str) -> object:
        raise PermissionError(errno.EACCES, "Permission denied", place)

    assert doubt([str(tmp_path / "nowhere")]) is None
    monkeypatch.setattr(os, "scandir", scandir)
    assert doubt([str(tmp_path)]) == f"{tmp_path}, which cannot be read here (Permission denied)"
