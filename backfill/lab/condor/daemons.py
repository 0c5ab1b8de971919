"""The machines of a lab's HTCondor pool: configuration and directories of their daemons."""

from __future__ import annotations

import os
from pathlib import Path

from backfill.lab.extras import exported
from backfill.lab.service import Service
from backfill.lab.spec import CE, CONDOR_PORT, POOL, LabError, LabSpec, host_address

# Nobody else on this machine or in a Debian has this number.
_ID = 64058
USER = f"condor:x:{_ID}:{_ID}:HTCondor:/nonexistent:/usr/sbin/nologin"
DOMAIN = "pool"
PILOT = f"pilot@{DOMAIN}"
TOOLS = (
    "condor_config_val",
    "condor_history",
    "condor_hold",
    "condor_q",
    "condor_release",
    "condor_rm",
    "condor_status",
    "condor_submit",
    "condor_token_create",
    "condor_wait",
)
_BLAH = "usr/libexec/blahp/blah.py"
# Where Debian has everything, for daemons of root and of users alike.
PLACES = """\
RELEASE_DIR = /usr
BIN = /usr/bin
SBIN = /usr/sbin
LIB = /usr/lib/condor
LIBEXEC = /usr/libexec/condor
LOG = $(LOCAL_DIR)/log
SPOOL = $(LOCAL_DIR)/spool
EXECUTE = $(LOCAL_DIR)/execute
LOCK = $(LOCAL_DIR)/lock
RUN = $(LOCAL_DIR)/run
SEC_TOKEN_DIRECTORY = $(LOCAL_DIR)/tokens.d
"""
# As a pool on the open network: who is not known by a token or by this machine is nobody.
SAFETY = f"""\
UID_DOMAIN = {DOMAIN}
TRUST_DOMAIN = {DOMAIN}
SEC_DEFAULT_AUTHENTICATION = REQUIRED
SEC_DEFAULT_ENCRYPTION = REQUIRED
SEC_DEFAULT_INTEGRITY = REQUIRED
SEC_DEFAULT_AUTHENTICATION_METHODS = FS,IDTOKENS
SEC_ENABLE_MATCH_PASSWORD_AUTHENTICATION = True
ALLOW_READ = *
ALLOW_WRITE = *
USE_SHARED_PORT = True
"""
# The access point forgets a pilot that is silent only after the lease, and notices silence late.
_POOL = f"""\
DAEMON_LIST = MASTER,COLLECTOR,NEGOTIATOR,SCHEDD
ALLOW_DAEMON = condor@*,{PILOT}
ALLOW_ADVERTISE_STARTD = {PILOT}
ALLOW_ADVERTISE_MASTER = {PILOT},condor@*
ALLOW_NEGOTIATOR = condor@*
NEGOTIATOR_INTERVAL = 5
NEGOTIATOR_MIN_INTERVAL = 2
NEGOTIATOR_CYCLE_DELAY = 2
JOB_DEFAULT_LEASE_DURATION = 2400
JOB_EPOCH_HISTORY = $(SPOOL)/epoch_history
# condor_q gives up after 20 s otherwise, which a busy machine may take to answer.
Q_QUERY_TIMEOUT = 150
SYSTEM_JOB_MACHINE_ATTRS = $(SYSTEM_JOB_MACHINE_ATTRS) SlurmJob
"""
# Pilots are jobs of Slurm here, looked at more often than where a site has thousands.
_CE = """\
DAEMON_LIST = MASTER,COLLECTOR,SCHEDD
ALLOW_DAEMON = condor@*
ALLOW_NEGOTIATOR = condor@*
GRIDMANAGER_JOB_PROBE_INTERVAL = 5
GRIDMANAGER_JOB_PROBE_RATE = 5
"""


def home(lab_dir: Path, machine: str) -> Path:
    """Return the directory of the machine's daemons."""
    return lab_dir / "machines" / machine / "condor"


def config(lab_dir: Path, machine: str) -> Path:
    """Return the configuration of the machine's daemons and commands."""
    return home(lab_dir, machine) / "config"


def tokens(lab_dir: Path) -> Path:
    """Return the directory with the daemon's token for the pool."""
    return lab_dir / "condor-tokens"


def write(spec: LabSpec, lab_dir: Path, machine: str) -> None:
    """Write the machine's configuration and directories; blahp, put right, where it is needed."""
    place, address = home(lab_dir, machine), host_address(machine)
    place.mkdir()
    place.chmod(0o755)
    for name in ("log", "spool", "lock", "run", "execute"):
        (place / name).mkdir()
        os.chown(place / name, _ID, _ID)
    for name in ("tokens.d", "passwords.d"):
        (place / name).mkdir(mode=0o700)
    config(lab_dir, machine).write_text(
        f"CONDOR_HOST = {address}\nNETWORK_INTERFACE = {address}\nFULL_HOSTNAME = {machine}\n"
        f"LOCAL_DIR = {place}\n{PLACES}{SAFETY}"
        f"CONDOR_IDS = {_ID}.{_ID}\nTRUST_UID_DOMAIN = True\n"
        f"SHARED_PORT_PORT = {CONDOR_PORT}\nSEC_PASSWORD_DIRECTORY = {place}/passwords.d\n"
        f"ALLOW_ADMINISTRATOR = root@*,condor@*\n{_POOL if machine == POOL else _CE}"
    )
    if machine == CE:
        (place / "blah.py").write_text(_readable_blah(Path(spec.root_of(machine), _BLAH)))


def _readable_blah(shipped: Path) -> str:
    """Debian's reads its configuration by a call that Python 3.12 has dropped, and so never starts."""
    try:
        return shipped.read_text().replace(".readfp(", ".read_file(")
    except FileNotFoundError:
        raise LabError(f"{shipped} is missing: remove that root and build it again") from None


def binds(lab_dir: Path, machine: str) -> list[tuple[Path, str]]:
    """Return what the machine sees elsewhere than in the lab's directory."""
    if machine != CE:
        return []
    # blahp takes it for granted that a job finds everything where its submitter has it.
    return [(home(lab_dir, CE) / "blah.py", f"/{_BLAH}"), (exported(lab_dir) / "home", "/home")]


def service(lab_dir: Path, machine: str) -> Service:
    """Describe the service of the master, which starts the others."""
    told = f"CONDOR_CONFIG={config(lab_dir, machine)}"
    ready = f"tcp:{host_address(machine)}:{CONDOR_PORT}"
    if machine == POOL:
        # The collector makes the key of all tokens, a little later than the port is open.
        ready += f" file:{home(lab_dir, machine)}/passwords.d/POOL"
    return Service("condor", ("/usr/bin/env", told, "/usr/sbin/condor_master", "-f"), ready=ready)
