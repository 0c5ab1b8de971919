"""Pilots of a lab's pool: batch scripts of an ordinary user that start HTCondor in their guest."""

from __future__ import annotations

import os
from pathlib import Path

from backfill.lab.cluster import Lab
from backfill.lab.condor.daemons import DOMAIN, PILOT, PLACES, SAFETY, tokens
from backfill.lab.layout import user_ids
from backfill.lab.spec import CONDOR_PORT, JOB_USER, POOL, host_address

# What lets a pilot stand still for some minutes: see docs/htcondor.md.
PATIENT = """\
MAX_TIME_SKIP = 864000
STARTER_UPDATE_INTERVAL = 20
CCB_HEARTBEAT_INTERVAL = 120
STARTD_NOCLAIM_SHUTDOWN = 7200
"""
_CONFIG = f"""\
CONDOR_HOST = {host_address(POOL)}:{CONDOR_PORT}
NETWORK_INTERFACE = eth0
DAEMON_LIST = MASTER,STARTD
{PLACES}{SAFETY}ALLOW_DAEMON = condor@*,{PILOT},submit-side@matchsession
ALLOW_ADMINISTRATOR = {PILOT}
ALLOW_NEGOTIATOR = condor@*
SHARED_PORT_PORT = 0
USE_CCB = True
CCB_ADDRESS = $(CONDOR_HOST)
UPDATE_INTERVAL = 60
NUM_CPUS = 1
MEMORY = 128
NUM_SLOTS = 1
NUM_SLOTS_TYPE_1 = 1
SLOT_TYPE_1 = cpus=100%,memory=100%,disk=100%,swap=100%
SLOT_TYPE_1_PARTITIONABLE = True
START = isUndefined(TARGET.ExpectedRunTime) || time() + TARGET.ExpectedRunTime < PilotEnds
STARTD_CRON_JOBLIST = END
STARTD_CRON_END_EXECUTABLE = $(LOCAL_DIR)/end
STARTD_CRON_END_PERIOD = 10
SUSPEND = False
WANT_SUSPEND = False
PREEMPT = False
KILL = False
RANK = 0
{PATIENT}"""
# Each run has a directory of its own: starters of an earlier one may linger in theirs.
_SCRIPT = """\
#!/bin/sh
#SBATCH --job-name=pilot
#SBATCH --partition=htc
umask 077
home=$(mktemp -d /tmp/pilot.XXXXXX) || exit 1
cd "$home" && mkdir log spool execute lock run tokens.d || exit 1
chmod 755 . execute
name=pilot-$SLURM_JOB_ID-$(uname -n)
cat >config <<EOF
LOCAL_DIR = $home
FULL_HOSTNAME = $name
FILESYSTEM_DOMAIN = $name
PRIVATE_NETWORK_NAME = $name
SlurmJob = "$SLURM_JOB_ID"
PilotEnds = ${{SLURM_JOB_END_TIME:-2147483647}}
STARTD_ATTRS = \\$(STARTD_ATTRS), SlurmJob, PilotEnds
EOF
cat >end <<EOF
#!/bin/sh
told=/run/backfill/jobfeatures/$SLURM_JOB_ID/shutdowntime_job
[ ! -r "\\$told" ] || echo "PilotEnds = \\$(cat "\\$told")"
EOF
chmod 700 end
cat >>config <<'EOF'
{config}EOF
echo '{token}' >tokens.d/pilot
chmod 600 tokens.d/pilot
exec env CONDOR_CONFIG="$home/config" /usr/sbin/condor_master -f
"""


def write_reader(lab: Lab) -> Path:
    """Write a token with which the daemon may ask the lab's pool, which must be up; return its directory."""
    argv = ["condor_token_create", "-identity", f"backfill@{DOMAIN}", "-key", "POOL", "-authz", "READ"]
    token = lab.run(POOL, argv, check=True).stdout
    place = tokens(lab.dir)
    place.mkdir(mode=0o700, exist_ok=True)
    path = place / "pool"
    path.touch(mode=0o600)
    path.write_text(token)
    return place


def write_pilot(lab: Lab) -> Path:
    """Write the script of a pilot with a token for the lab's pool, which must be up; return its path.

    It is the job user's alone: who can read the token can join the pool.
    """
    argv = ["condor_token_create", "-identity", PILOT, "-key", "POOL"]
    token = lab.run(POOL, argv, check=True).stdout.strip()
    path = lab.shared / "pilot.sh"
    path.touch(mode=0o700)
    path.write_text(_SCRIPT.format(config=_CONFIG, token=token))
    uid, gid = user_ids(lab.dir / "etc", JOB_USER)
    path.chmod(0o700)
    os.chown(path, uid, gid)
    return path
