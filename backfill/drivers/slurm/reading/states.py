"""Slurm's words for the states of nodes and jobs, full and compact, split into base and flags."""

from __future__ import annotations

from backfill.core.model.cluster import JobState, NodeBase

# One-character endings of the short form (sinfo(1), NODE STATE CODES).
_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
    "+": "COMPLETING",
}

# Short and combined words that stand for a base and flags.
_SHORT: dict[str, tuple[NodeBase, frozenset[str]]] = {
    "UNK": (NodeBase.UNKNOWN, frozenset()),
    "ALLOC": (NodeBase.ALLOCATED, frozenset()),
    "MIX": (NodeBase.MIXED, frozenset()),
    "FUTR": (NodeBase.FUTURE, frozenset()),
    "COMP": (NodeBase.IDLE, frozenset({"COMPLETING"})),
    "COMPLETING": (NodeBase.IDLE, frozenset({"COMPLETING"})),
    "DRAIN": (NodeBase.IDLE, frozenset({"DRAIN"})),
    "DRAINED": (NodeBase.IDLE, frozenset({"DRAIN"})),
    "DRNG": (NodeBase.MIXED, frozenset({"DRAIN"})),
    "DRAINING": (NodeBase.MIXED, frozenset({"DRAIN"})),
    "FAIL": (NodeBase.IDLE, frozenset({"FAIL"})),
    "FAILG": (NodeBase.MIXED, frozenset({"FAIL"})),
    "FAILING": (NodeBase.MIXED, frozenset({"FAIL"})),
    "MAINT": (NodeBase.IDLE, frozenset({"MAINTENANCE"})),
    "RESV": (NodeBase.IDLE, frozenset({"RESERVED"})),
    "RESERVED": (NodeBase.IDLE, frozenset({"RESERVED"})),
    "PLND": (NodeBase.IDLE, frozenset({"PLANNED"})),
    "PLANNED": (NodeBase.IDLE, frozenset({"PLANNED"})),
    "INVAL": (NodeBase.DOWN, frozenset({"INVALID_REG"})),
    "INVALID": (NodeBase.UNKNOWN, frozenset()),
    "BOOT": (NodeBase.DOWN, frozenset({"REBOOT_REQUESTED"})),
    "REBOOT": (NodeBase.DOWN, frozenset({"REBOOT_REQUESTED"})),
    "POW_UP": (NodeBase.IDLE, frozenset({"POWER_UP"})),
    "POW_DN": (NodeBase.IDLE, frozenset({"POWER_DOWN"})),
    "POWERED_DN": (NodeBase.IDLE, frozenset({"POWERED_DOWN"})),
    "POWRING_DN": (NodeBase.IDLE, frozenset({"POWERING_DOWN"})),
}
_SHORT |= {base.value: (base, frozenset()) for base in NodeBase}

# Words that squeue shows instead of the base state; the base that the job then has.
# COMPLETING hides the base, see `job_state`.
_JOB_FLAGS = {
    "CONFIGURING": JobState.RUNNING,
    "EXPEDITING": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "RESIZING": JobState.RUNNING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "REVOKED": JobState.CANCELLED,
    "SIGNALING": JobState.RUNNING,
    "SPECIAL_EXIT": JobState.PENDING,
    "STAGE_OUT": JobState.COMPLETED,
    "STOPPED": JobState.RUNNING,
}
_JOB_SHORT = {
    "PD": "PENDING",
    "R": "RUNNING",
    "S": "SUSPENDED",
    "CD": "COMPLETED",
    "CA": "CANCELLED",
    "F": "FAILED",
    "TO": "TIMEOUT",
    "NF": "NODE_FAIL",
    "PR": "PREEMPTED",
    "BF": "BOOT_FAIL",
    "DL": "DEADLINE",
    "OOM": "OUT_OF_MEMORY",
    "CF": "CONFIGURING",
    "CG": "COMPLETING",
    "RD": "RESV_DEL_HOLD",
    "RF": "REQUEUE_FED",
    "RH": "REQUEUE_HOLD",
    "RQ": "REQUEUED",
    "RS": "RESIZING",
    "RV": "REVOKED",
    "SE": "SPECIAL_EXIT",
    "SI": "SIGNALING",
    "SO": "STAGE_OUT",
    "ST": "STOPPED",
}
_BASES = {state.value: state for state in JobState}


def node_state(text: str) -> tuple[NodeBase, frozenset[str]]:
    """Split `IDLE+CLOUD+DRAIN`, `idle*` or `drng@` into base and flags; ValueError if unknown."""
    word, *flags = text.strip().upper().split("+")
    if flags and flags[-1] == "":  # the short form `alloc+`
        flags[-1] = "COMPLETING"
    endings = []
    while word and word[-1] in _SUFFIXES:
        endings.append(_SUFFIXES[word[-1]])
        word = word[:-1]
    if word not in _SHORT:
        raise ValueError(f"node state '{text}' is not known")
    base, implied = _SHORT[word]
    return base, implied.union(flags, endings)


def job_state(text: str, ended: bool = True) -> tuple[JobState, frozenset[str]]:
    """Split what squeue shows as a job's state into base and flags; ValueError if unknown.

    squeue shows COMPLETING instead of the base. `ended` tells whether the job's end lies in the
    past: a requeued job that completes its old run is PENDING underneath and has not ended; any
    other has, and how it ended is shown only later, so COMPLETED stands for all of these.
    """
    word = text.strip().upper()
    word = _JOB_SHORT.get(word, word)
    if word in _BASES:
        return _BASES[word], frozenset()
    if word == "COMPLETING":
        return (JobState.COMPLETED if ended else JobState.PENDING), frozenset({word})
    if word in _JOB_FLAGS:
        return _JOB_FLAGS[word], frozenset({word})
    raise ValueError(f"job state '{text}' is not known")


def is_exclusive(sharing: str, exclusive: str = "") -> bool:
    """Return True if a job, by itself or by its partition, shares its nodes with no other at all.

    `sharing`: what Slurm shows as OverSubscribe, or as `shared`. From 26.05 on that tells less, and what
    it shows as Exclusive tells instead; empty: it does not show that. Source: slurm_protocol_defs.c,
    job_share_string and job_exclusive_display_string.
    """
    return exclusive in ("NODE", "TOPO") if exclusive else sharing.upper() in ("NO", "NONE", "TOPO")
