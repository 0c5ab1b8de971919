"""The texts of a site's configuration: Slurm, its accounting, libvirt, and the units that we add."""

from __future__ import annotations

import sys
from pathlib import Path

from backfill.lab.roots import INSTALLED
from backfill.lab.spec import JOB_USER, LIBVIRT_PORT, SLURM_USER, LabSpec, host_address

ACCOUNTS = {"physics": JOB_USER, "biology": "bob"}
# Where the site's machines see the directory that they share, as if it were mounted from a server.
SHARED = "/srv/backfill"


def slurm_conf(spec: LabSpec) -> str:
    """Write the slurm.conf of all machines as an admin would; `spec.extra_conf` comes last."""
    lines = [
        f"ClusterName={spec.name}",
        "SlurmctldHost=ctl",
        f"SlurmUser={SLURM_USER}",
        "AuthType=auth/munge",
        "StateSaveLocation=/var/lib/slurm/slurmctld",
        "SlurmdSpoolDir=/var/lib/slurm/slurmd",
        "SlurmctldPidFile=/run/slurmctld.pid",
        "SlurmdPidFile=/run/slurmd.pid",
        "SlurmctldLogFile=/var/log/slurm/slurmctld.log",
        "SlurmdLogFile=/var/log/slurm/slurmd.log",
        "LogTimeFormat=iso8601_ms",
        "ProctrackType=proctrack/cgroup",
        "TaskPlugin=task/cgroup,task/affinity",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=task=5",
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=ctl",
        "AccountingStorageEnforce=associations,limits",
        "PriorityType=priority/multifactor",
        "PriorityWeightFairshare=10000",
        "PriorityDecayHalfLife=7-0",
        # Usage is charged once in so many minutes: the least that there is, so that a test can see it.
        "PriorityCalcPeriod=1",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SlurmctldParameters=enable_configless",
        "SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,sched_interval=1,bf_interval=2",
        f"SlurmdTimeout={spec.slurmd_timeout_s}",
        "TreeWidth=65533",
        "MaxNodeCount=1000",
        "ReturnToService=2",
        "JobRequeue=1",
        f"PrologEpilogTimeout={spec.hook_limit_s}",
        *(f"NodeName={name} CPUs={spec.cpus} RealMemory={spec.memory_mb}" for name in spec.host_names),
        "NodeSet=virtual Feature=backfill",
        f"PartitionName=batch Nodes={','.join(spec.host_names)} Default=YES PriorityTier=10 "
        "MaxTime=INFINITE State=UP",
        "PartitionName=htc Nodes=virtual PriorityTier=1 MaxTime=INFINITE State=UP",
        *spec.extra_conf,
    ]
    return "\n".join(lines) + "\n"


def cgroup_conf(spec: LabSpec) -> str:
    """Write the cgroup.conf of all machines, guests included, which have no systemd.

    Later releases than 22.05 end where they do not reach systemd, also with IgnoreSystemdOnFailure.
    """
    ignore = "IgnoreSystemdOnFailure" if spec.slurm_version == INSTALLED else "IgnoreSystemd"
    return f"ConstrainCores=yes\nConstrainRAMSpace=yes\n{ignore}=yes\n"


SLURMDBD_CONF = f"""AuthType=auth/munge
DbdHost=ctl
SlurmUser={SLURM_USER}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={SLURM_USER}
StorageLoc=slurm_acct_db
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurmdbd.pid
"""


def hosts(spec: LabSpec) -> str:
    """/etc/hosts: every machine by its name, as a site's name server would tell it."""
    names = ["ctl", *spec.host_names]
    return "127.0.0.1 localhost\n" + "".join(f"{host_address(name)} {name}\n" for name in names)


# --- the controller -----------------------------------------------------------------------------

# Small, for several sites may be up at once; what it writes need not survive a loss of power.
MARIADB = """[mariadbd]
innodb_buffer_pool_size = 64M
innodb_lock_wait_timeout = 900
innodb_flush_log_at_trx_commit = 0
performance_schema = OFF
"""

DATABASE_UNIT = f"""[Unit]
Description=Slurm's database and its user
After=mariadb.service
Requires=mariadb.service
Before=slurmdbd.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/mariadb -e "CREATE DATABASE IF NOT EXISTS slurm_acct_db; \\
CREATE USER IF NOT EXISTS {SLURM_USER}@localhost IDENTIFIED VIA unix_socket; \\
GRANT ALL ON slurm_acct_db.* TO {SLURM_USER}@localhost"

[Install]
WantedBy=multi-user.target
"""

ACCOUNTS_UNIT = """[Unit]
Description=Slurm's cluster, accounts and users
After=slurmdbd.service
Requires=slurmdbd.service
Before=slurmctld.service

[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=180
ExecStart=/usr/local/sbin/site-accounts

[Install]
WantedBy=multi-user.target
"""


def accounts_script(spec: LabSpec) -> str:
    """Add cluster, accounts and users once slurmdbd answers, in one go: each call takes its time."""
    orders = [f"add cluster {spec.name}"]
    for account, user in ACCOUNTS.items():
        orders.append(f"add account {account} Cluster={spec.name} Description={account}")
        orders.append(f"add user {user} Account={account} Cluster={spec.name} Fairshare=1")
    # Only a slurmdbd that does not listen yet is waited for: a mistake in slurm.conf stays one.
    waiting = (
        "until said=$(sacctmgr -nP show cluster format=cluster 2>&1); do\n"
        '    case $said in *onnect*) sleep 0.2 ;; *) echo "$said"; exit 1 ;; esac\ndone'
    )
    # The database outlives a boot.
    known = f"case $said in *{spec.name}*) exit 0 ;; esac"
    return "\n".join(["#!/bin/sh", "set -e", waiting, known, "sacctmgr -i <<END", *orders, "END"]) + "\n"


def tally_unit(lab_dir: Path) -> str:
    """Write the unit of the collector of what counting jobs say: it runs from our own files."""
    source = Path(__file__).parents[3]
    return (
        "[Unit]\nDescription=The lab's tally\n\n[Service]\n"
        f"Environment=PYTHONPATH={source} PYTHONDONTWRITEBYTECODE=1\n"
        f"ExecStart=/usr/bin/python3 -m backfill.lab.tally {lab_dir}/tally.log\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


# --- the hosts ----------------------------------------------------------------------------------

LIBVIRTD_CONF = f'auth_tcp = "none"\nlisten_addr = "0.0.0.0"\ntcp_port = "{LIBVIRT_PORT}"\n'
QEMU_CONF = 'security_driver = "none"\nremember_owner = 0\n'


def checkout() -> tuple[Path, Path]:
    """Our own files and the Python environment that runs them, where a site's machine needs both."""
    return Path(__file__).parents[3], Path(sys.prefix)
