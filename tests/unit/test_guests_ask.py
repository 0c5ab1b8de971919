"""Guests whose slurmd is told of the hosts' hook: what takes its place there, and whom it asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.ui import slurm_parts
from tests.unit.policy_files import LIBVIRT, LIBVIRT_HOST, loaded, text

ON_HOSTS = "slurm: {hooks: {place: host, directory: /srv/hooks, margin_s: 1.5}}"
LISTEN = "daemon: {listen: '10.0.0.1:6833'}"
VF = "devices: [{name: vf, functions: 1}]"


def parts(where: Path, *more: str) -> tuple[str, tuple[str, ...]]:
    """Whom guests ask, and what they lack apart from what is named."""
    config = loaded(where, text(LIBVIRT, "answer_within_s: 20", *more, hosts=LIBVIRT_HOST))
    return slurm_parts.guests_ask(config), slurm_parts.no_ops(config, ("/site/prolog",))


def test_guests_ask_where_nobody_else_holds_a_job_for_its_devices(tmp_path: Path) -> None:
    """As long as a hook on a host would; the hooks need not be named by hand."""
    asked, lacking = parts(tmp_path, LISTEN, ON_HOSTS, VF)
    assert asked == "tcp:10.0.0.1:6833 21500"
    assert lacking == ("/site/prolog", "/srv/hooks/prolog", "/srv/hooks/epilog")


@pytest.mark.parametrize("more", [(LISTEN, VF), (LISTEN, ON_HOSTS), (ON_HOSTS, VF)])
def test_guests_ask_nobody_in_vain(tmp_path: Path, more: tuple[str, ...]) -> None:
    """slurmctld's hook holds the job itself; there are no devices; or there is nobody to ask."""
    asked, lacking = parts(tmp_path, *more)
    assert asked == ""
    assert ("/srv/hooks/prolog" in lacking) is (ON_HOSTS in more)
