"""Bakes Salt into a guest's root: its packages, the image role's states, and byte code for all."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from backfill.drivers.salt.results import problem_in
from backfill.lab import saltenv
from backfill.lab.spec import CONTROLLER_ADDRESS, LabError

STATES = Path(__file__).parents[2] / "salt_states"
# What a minion with these states runs, by folder of Salt. Every loader lists its folders, and for a
# name that is no file's it tries all of them: under emulation that alone is seconds.
_KEPT = {
    "modules": (
        "beacons cmdmod config cp data defaults disk environ event file grains groupadd hashutil "
        "key linux_shadow match mine mount network pillar saltutil schedule smbios state status "
        "sysmod test timezone useradd"
    ),
    "states": "cmd event file group host mount test user",
    "grains": "core extra opts",
    "returners": "local local_cache",
    "beacons": "status",
    "engines": "",
}
# Our own module of Salt's, by which the driver asks whether a run is needed at all.
LOOK = STATES / "_modules/backfill_look.py"
PLACE = "opt/salt"  # in the guest; found by PYTHONPATH, so it may stand anywhere
# Never imported by a minion with these states: half of the size, and all of their byte code.
_LEFT_OUT = ("libcloud", "cherrypy", "cheroot", "virtualenv", "setuptools", "git", "gitdb")


def ingredients() -> str:
    """Return the ingredients of the baked image as text: it becomes part of the recipe's name."""
    texts = [saltenv.lock_hash(), Path(__file__).read_text(), Path(saltenv.__file__).read_text()]
    texts += [p.read_text() for p in sorted((STATES / "image").iterdir())]
    texts += [(STATES / "backfill/people.sls").read_text(), LOOK.read_text(), json.dumps(_pillar())]
    return "\0".join(texts)


def bake(root: Path) -> None:
    """Install Salt below `root`, apply the image role there, and compile everything."""
    target = root / PLACE
    saltenv.install_into(target)
    for name in _LEFT_OUT:
        shutil.rmtree(target / name, ignore_errors=True)
    for folder, names in _KEPT.items():
        _keep(target / "salt" / folder, ("__init__", *names.split()))
    shutil.copy(LOOK, target / "salt/modules")
    for cached in target.rglob("__pycache__"):
        shutil.rmtree(cached)
    _apply_image_role(root)
    # Unchecked: the guest never compares times, which a copied disk may change. Compiled by the
    # guest's own interpreter, since byte code belongs to one version.
    _run(
        "chroot",
        str(root),
        "/usr/bin/python3",
        "-m",
        "compileall",
        "-q",
        "-j",
        "2",
        "--invalidation-mode",
        "unchecked-hash",
        f"/{PLACE}",
        "/usr/lib/python3.11",
    )


def _keep(folder: Path, names: tuple[str, ...]) -> None:
    for found in folder.iterdir():
        if found.stem not in names:
            shutil.rmtree(found) if found.is_dir() else found.unlink()


def _pillar() -> dict[str, Any]:
    """Return the sample pillar with the lab's controller; an image holds no secret."""
    pillar: dict[str, Any] = yaml.safe_load((STATES / "pillar/backfill.sls").read_text())
    pillar["backfill"]["controller"] |= {"address": CONTROLLER_ADDRESS, "name": "ctl"}
    pillar["backfill"]["munge"] = {"key_base64": ""}
    return pillar


def _apply_image_role(root: Path) -> None:
    """Run the image role's highstate inside of the root, with the Salt that was just installed."""
    work = root / "tmp/backfill"
    shutil.copytree(STATES, work / "states", ignore=shutil.ignore_patterns("pillar"))
    (work / "pillar").mkdir()
    (work / "pillar/top.sls").write_text("base: {'*': [backfill]}\n")
    (work / "pillar/backfill.sls").write_text(json.dumps(_pillar()))
    settings = {
        "id": "image",
        "file_client": "local",
        "file_roots": {"base": ["/tmp/backfill/states"]},  # noqa: S108  in the guest's root
        "pillar_roots": {"base": ["/tmp/backfill/pillar"]},  # noqa: S108
        "root_dir": "/tmp/backfill/root",  # noqa: S108
        "grains": {"backfill": {"role": "image", "kind": "virtual"}, "init": "busybox"},
        "enable_gpu_grains": False,
        "enable_fqdns_grains": False,
        "autoload_dynamic_modules": False,
    }
    (work / "minion").write_text(json.dumps(settings))
    try:
        done = subprocess.run(
            # Salt reads /proc; namespaces of its own leave nothing mounted behind.
            [
                "unshare",
                "--mount",
                "--pid",
                "--fork",
                f"--mount-proc={root}/proc",
                "chroot",
                str(root),
                "/usr/bin/env",
                "-i",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                f"PYTHONPATH=/{PLACE}",
                "/usr/bin/python3",
                "-c",
                "from salt.scripts import salt_call; salt_call()",
                "--local",
                "--retcode-passthrough",
                "--config-dir",
                "/tmp/backfill",  # noqa: S108 - inside the guest's own root
                "--out=json",
                "state.apply",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        problem = verdict(done.stdout)
        if problem or done.returncode:
            told = " / ".join(done.stderr.strip().splitlines()[-2:])
            raise LabError(f"the image role's states failed: {problem} {told}")
    finally:
        shutil.rmtree(work)


def verdict(output: str) -> str | None:
    """Return the failure of `salt-call --out=json state.apply`; None: it is a success."""
    try:
        answer = json.loads(output)["local"]
    except (ValueError, KeyError, TypeError):
        return f"Salt printed {output[-200:]!r}"
    return problem_in(answer)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"{argv[0]} failed while Salt was baked: {done.stderr.strip()[-300:]}")
