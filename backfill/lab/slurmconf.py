"""The lab's slurm.conf and cgroup.conf, as text; differences between Slurm releases live here."""

from __future__ import annotations

from backfill.lab.spec import (
    CONTROLLER_ADDRESS,
    SLURM_USER,
    SLURMCTLD_PORT,
    SLURMD_PORT,
    LabSpec,
    host_address,
)


def slurm_conf(spec: LabSpec, built_hook: str = "") -> str:
    """Write the complete slurm.conf; `spec.extra_conf` comes last, so it can add partitions.

    `built_hook` is called where the specification wants hooks and names no program of its own.
    """
    lines = [
        f"ClusterName={spec.name}",
        f"SlurmctldHost=ctl({CONTROLLER_ADDRESS})",
        f"SlurmUser={SLURM_USER}",
        f"SlurmctldPort={SLURMCTLD_PORT}",
        f"SlurmdPort={SLURMD_PORT}",
        *(
            ["AuthType=auth/slurm", "CredType=cred/slurm"]
            if spec.auth == "slurm"
            else ["AuthType=auth/munge"]
        ),
        "StateSaveLocation=/var/spool/slurmctld",
        "SlurmdSpoolDir=/var/spool/slurmd",
        "SlurmdPidFile=/run/slurmd.pid",
        "SlurmctldPidFile=/run/slurm/slurmctld.pid",
        "SlurmctldLogFile=/var/log/slurm/slurmctld.log",
        "SlurmdLogFile=/var/log/slurm/slurmd.log",
        "SlurmctldDebug=info",
        "SlurmdDebug=info",
        "LogTimeFormat=iso8601_ms",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        f"SelectTypeParameters={spec.select_parameters}",
        "SlurmctldParameters=enable_configless",
        "SlurmdParameters=config_overrides",
        # A job submitted in slurmctld's first moments is overlooked until the next full pass, which
        # would come after a minute. With 1 every look is a full one, and room that a job leaves is
        # never overlooked for a second more or less by chance.
        "SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,sched_interval=1",
        # A slurmd must never have to forward a message through a node that may be paused.
        "TreeWidth=65533",
        f"SlurmdTimeout={spec.slurmd_timeout_s}",
        "MaxNodeCount=1000",
        "ReturnToService=2",
        "JobRequeue=1",
        "KillWait=3",
        *([f"PrologEpilogTimeout={spec.hook_limit_s}"] if spec.hook_limit_s else []),
        *_release_lines(spec),
        *_hook_lines(spec, built_hook),
        *(
            f"NodeName={name} NodeAddr={host_address(name)} CPUs={spec.cpus} "
            f"RealMemory={spec.memory_mb} State=UNKNOWN"
            for name in spec.host_names
        ),
        "NodeSet=virtual Feature=backfill",
        f"PartitionName=batch Nodes={','.join(spec.host_names)} Default=YES PriorityTier=10 "
        "MaxTime=INFINITE State=UP",
        "PartitionName=htc Nodes=virtual PriorityTier=1 MaxTime=INFINITE State=UP",
        *spec.extra_conf,
    ]
    return "\n".join(lines) + "\n"


def cgroup_conf(spec: LabSpec) -> str:
    """cgroup.conf: nothing in the lab uses Slurm's cgroups, but 22.05 insists on a plugin."""
    old = _release(spec) < (23, 11)
    return "CgroupPlugin=cgroup/v1\n" if old else "CgroupPlugin=disabled\n"


def _release(spec: LabSpec) -> tuple[int, int]:
    major, minor = spec.slurm_version.split(".")[:2]
    return int(major), int(minor)


def _release_lines(spec: LabSpec) -> list[str]:
    return ["SwitchType=switch/none"] if _release(spec) < (23, 11) else []


def _hook_lines(spec: LabSpec, built_hook: str) -> list[str]:
    if spec.hooks == "none":
        return []
    start, end = {"slurmctld": ("PrologSlurmctld", "EpilogSlurmctld"), "host": ("Prolog", "Epilog")}[
        spec.hooks
    ]
    if not spec.hook:
        return [f"{start}={built_hook}", f"{end}={built_hook}"]
    return [f"{start}={spec.hook}", *([f"{end}={spec.hook_epilog}"] if spec.hook_epilog else [])]
