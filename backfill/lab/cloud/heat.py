"""Heat in the test cloud, for who asks for it: an environment of its own, and its configuration.

Its releases want other versions of the libraries than the rest, so it shares no environment with
them; and its database is made when it starts, so that no other cloud pays for it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from backfill.lab.cloud import files
from backfill.lab.service import Service

LOCK = Path(__file__).with_name("heat.lock")
NAME, PORT = "heat", 8004
_PROGRAM = Path(__file__).with_name("inside") / "orchestration.py"
_KEY = "of a cloud that ends in an hour."  # what it keeps for later is encrypted; 32 characters


def write(root: Path, env: Path) -> None:
    """All its files below `root`; `env`: the environment with Heat."""
    etc = root / "etc/heat"
    etc.mkdir(parents=True, exist_ok=True)
    shutil.copy(env / "etc/heat/api-paste.ini", etc)
    (etc / "heat.conf").write_text(_conf(root, env))


def service(root: Path, env: Path) -> Service:
    """Return API and engine as one process: messages between them need no broker."""
    argv = (str(env / "bin/python"), str(_PROGRAM), str(root))
    return Service(NAME, argv, after="tcp:127.0.0.1:5000", ready=f"tcp:127.0.0.1:{PORT}")


def _conf(root: Path, env: Path) -> str:
    return f"""[DEFAULT]
host = ctl
log_file = {root}/log/heat.log
transport_url = fake:///
region_name_for_services = RegionOne
auth_encryption_key = {_KEY}
environment_dir = {env}/etc/heat/environment.d
template_dir = {env}/etc/heat/templates
[database]
connection = {files.database(NAME)}
[paste_deploy]
api_paste_config = {root}/etc/heat/api-paste.ini
[oslo_concurrency]
lock_path = {root}/locks
[clients_keystone]
auth_uri = {files.KEYSTONE}
[trustee]
{files.AUTH}
{files.TOKEN}"""
