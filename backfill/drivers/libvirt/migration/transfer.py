"""A running guest's way to another host as libvirt sees it: begun, watched, cancelled, finished."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import libvirt

from backfill.drivers.libvirt.settings import MoveTerms

_FLAGS = (
    libvirt.VIR_MIGRATE_LIVE
    | libvirt.VIR_MIGRATE_PEER2PEER
    | libvirt.VIR_MIGRATE_PERSIST_DEST
    | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
    | libvirt.VIR_MIGRATE_ABORT_ON_ERROR
    | libvirt.VIR_MIGRATE_AUTO_CONVERGE
    # libvirt cannot see that the directory is shared; the configuration says it is. To ask it first
    # would open and close a connection between the hosts directly before the one that is needed.
    | libvirt.VIR_MIGRATE_UNSAFE
)
_OUT = libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT
_NO_JOB = (libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_NO_SUPPORT)
_POST_COPY = (libvirt.VIR_DOMAIN_PAUSED_POSTCOPY, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED)
_MB = 1_000_000
# What is left must take so long that an order to stop arrives well before the switch-over:
# a cancellation in that moment leaves libvirt or QEMU waiting for ever (measured, libvirt 9.0).
_SAFE_S = 0.5


class MoveStep(Enum):
    """The next thing to do with a move."""

    WAIT = auto()
    POST_COPY = auto()
    CANCEL = auto()


@dataclass(frozen=True, slots=True)
class Carriage:
    """The machine as the target is to have it, now and when it is started again: its files or its CPUs
    are others there. `disk`: its disk goes along, over NBD."""

    document: str
    persistent: str
    disk: bool


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """The progress of a move. `rate_mb_s` 0: not known yet. `rounds`: passes over changed memory."""

    left_mb: float
    rate_mb_s: float
    rounds: int
    post_copy: bool = False

    @property
    def cancellable(self) -> bool:
        """Return True if an order to stop will arrive before the guest changes sides."""
        if self.post_copy or self.rounds == 0:
            return not self.post_copy
        return self.left_mb > self.rate_mb_s * _SAFE_S


def move(
    domain: Any,
    target_uri: str,
    data_uri: str | None,
    stay_paused: bool,
    terms: MoveTerms,
    carriage: Carriage | None = None,
) -> None:
    """Send the domain to the libvirtd at `target_uri`; returns when it is there.

    `data_uri` is where the target receives memory, such as tcp://10.0.0.2.
    """
    parameters: dict[str, object] = {}
    if data_uri:
        parameters[libvirt.VIR_MIGRATE_PARAM_URI] = data_uri
    if terms.bandwidth_mb_s is not None:
        parameters[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH] = terms.bandwidth_mb_s
    flags = _FLAGS
    if carriage is not None and carriage.disk:
        flags |= libvirt.VIR_MIGRATE_NON_SHARED_INC  # what lies below the disk is there already
        parameters[libvirt.VIR_MIGRATE_PARAM_MIGRATE_DISKS] = ["vda"]
    if carriage is not None:
        parameters[libvirt.VIR_MIGRATE_PARAM_DEST_XML] = carriage.document
        parameters[libvirt.VIR_MIGRATE_PARAM_PERSIST_XML] = carriage.persistent
    if stay_paused:
        flags |= libvirt.VIR_MIGRATE_PAUSED
    elif terms.post_copy_after_s is not None:
        flags |= libvirt.VIR_MIGRATE_POSTCOPY
    domain.migrateToURI3(target_uri, parameters, flags)


def progress(domain: Any) -> MoveProgress | None:
    """Return the progress of the domain's move; None if it is not leaving."""
    try:
        job = domain.jobStats()
    except libvirt.libvirtError as error:
        if error.get_error_code() in _NO_JOB:
            return None
        raise
    if not job["type"] or job.get("operation", 0) != _OUT:
        return None
    passes = int(job.get("memory_iteration", 0))
    return MoveProgress(
        left_mb=int(job.get("memory_remaining", 0)) / _MB,
        rate_mb_s=int(job.get("memory_bps", 0)) / _MB,
        # Before the first figures nothing is known of what is left: that is the beginning.
        rounds=passes if job.get("memory_total") else 0,
        post_copy=_in_post_copy(domain),
    )


def _in_post_copy(domain: Any) -> bool:
    state, reason = domain.state()
    return bool(state == libvirt.VIR_DOMAIN_PAUSED and reason in _POST_COPY)


def decide(terms: MoveTerms, elapsed_s: float, seen: MoveProgress, asked: frozenset[MoveStep]) -> MoveStep:
    """Decide about a move that has taken `elapsed_s`; `asked`: the steps that were ordered already. Pure.

    A guest that has switched to post-copy is on both hosts at once: it can only go on.
    """
    if seen.post_copy:
        return MoveStep.WAIT
    late = terms.post_copy_after_s is not None and elapsed_s >= terms.post_copy_after_s
    if late and seen.rounds and MoveStep.POST_COPY not in asked:
        return MoveStep.POST_COPY
    if elapsed_s >= terms.within_s and seen.cancellable and MoveStep.CANCEL not in asked:
        return MoveStep.CANCEL
    return MoveStep.WAIT
