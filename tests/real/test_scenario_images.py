"""Two images of the catalogue on real guests: each job gets its own, and who may have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backfill.config.load import load
from backfill.drivers.slurm.conf.files import replace_file
from backfill.drivers.slurm.conf.managed import EMPTY, render
from backfill.drivers.slurm.hooks.install import Hooks
from backfill.lab.policyfile import policy
from backfill.ui import slurm_parts
from tests.real.conf_lab import transactions_of
from tests.real.daemon_rig import DaemonRig, daemon_lab

pytestmark = [pytest.mark.real, pytest.mark.gate]

# What cloud-init would find tells which image a guest is of: they share one disk here.
_USER_DATA = "/var/lib/cloud/seed/nocloud/user-data"
# What an admin writes there may be a secret: it is for root alone.
_TELL = f"""#!/bin/bash
said=$(cat {_USER_DATA} 2>&1)
case $said in *"Permission denied") said=denied ;; esac
scontrol update JobId=$SLURM_JOB_ID Comment="$said"
sleep 600
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("images", hooks="none") as rig:
        conf = rig.lab.slurm_conf
        replace_file(conf.with_name("backfill.conf"), render(EMPTY), like=conf)
        with conf.open("a") as file:
            file.write("Include backfill.conf\n")
        rig.lab.restart("slurmctld")
        yield rig


def catalogue(rig: DaemonRig) -> dict[str, Any]:
    """Three environments: red and blue for everybody, with a name each, gold for ada alone."""
    plain: dict[str, Any] = policy(rig.lab, rig.image)["libvirt"]["images"]["default"]
    images = {"default": plain, "gold": {**plain, "environment": "gold", "users": ["ada"]}}
    for number, colour in enumerate(("red", "blue"), 1):
        words = rig.lab.shared / f"{colour}.user-data"
        words.write_text(f"#{colour}")
        images[colour] = {**plain, "environment": colour, "names": f"vn{number}", "user_data": str(words)}
    return images


@contextmanager
def installed(rig: DaemonRig) -> Iterator[None]:
    """As `backfill slurm apply` and `backfill slurm hooks install` do, by the daemon's policy."""
    config = load(rig.lab.dir / "policy.yaml")
    change = transactions_of(rig.lab, timeout_s=60)
    change.apply(lambda now: slurm_parts.wanted(config).change(now, change.site()))
    plan = slurm_parts.hook_plan(config)
    hooks = Hooks(change, plan.directory)
    hooks.install(plan, change.slurm.settings().version)
    try:
        yield
    finally:
        hooks.remove()
        change.apply(lambda now: EMPTY)


def told(rig: DaemonRig, job: str) -> bool:
    return bool(rig.show(job).get("Comment"))


def test_each_job_gets_the_image_that_it_asks_for_and_nobody_anothers(rig: DaemonRig) -> None:
    """By constraint, with its own user data and names; whoever is not listed is told at sbatch."""
    home = rig.lab.dir / "ours"
    hooks = {"directory": str(home), "log": str(home / "log")}
    rig.restart(libvirt={"images": catalogue(rig)}, slurm={"hooks": hooks})
    script = Path(rig.lab.shared, "tell.sh")
    script.write_text(_TELL)
    with installed(rig):
        jobs = {c: rig.submit("-p", "htc", "-C", c, str(script)) for c in ("red", "blue")}
        refused = rig.lab.run("ctl", ["sbatch", "-p", "htc", "-C", "gold", "--wrap", "true"])
        assert refused.returncode != 0
        assert "may not have environment gold: it is for user ada" in refused.stderr
        for (colour, job), name in zip(jobs.items(), ("vn1", "vn2"), strict=True):
            rig.until(partial(told, rig, job), 300, f"job {job} for {colour}")
            seen = rig.show(job)
            assert (seen["Comment"], seen["NodeList"]) == ("denied", name)
            assert rig.out_of_guest(rig.where(job)[1], name, f"cat {_USER_DATA}") == f"#{colour}"
            rig.cancel(job)
