"""Reasons and refusals as people read them: the one place where they get their words.

A part in brackets is left out where one of its facts is missing or empty.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from backfill.core.model.lifecycle import Way
from backfill.core.model.quantities import Resources, counted
from backfill.core.model.refusals import Code, Goal, Reason, Refusal

_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")


_FIELD = re.compile(r"\{(\w+)")


_GOALS = {
    Goal.ANY_STEP: "any step",
    Goal.ANY_CHANGE: "any change",
    Goal.BELIEF: "belief",
    Goal.WORK_AS_USUAL: "work as usual",
    Goal.CARE: "care",
    Goal.PHASE: "to be {about}",
    Goal.INSTANCE: "an instance",
    Goal.NEW_INSTANCE: "a new instance",
    Goal.NEW_INSTANCE_OF: "a new instance of {about}",
    Goal.NEW_INSTANCE_WITH: "a new instance with {about}",
    Goal.PARENT: "a parent of {about}",
    Goal.FIRST_MEMBER: "first member",
    Goal.FURTHER_MEMBER: "further member",
    Goal.RETRY: "further try",
    Goal.TAKE_OVER: "taking it over",
    Goal.RELEASE: "release",
    Goal.NEW_JOBS: "new jobs",
    Goal.DRAIN: "drain",
    Goal.UNDRAIN: "undrain",
    Goal.SET_DOWN: "setting it DOWN",
    Goal.HOST_RELEASE: "its host's release",
    Goal.ALL_CPUS: "all of its CPUs",
    Goal.SUSPEND: "suspend",
    Goal.SUSPEND_JOB: "suspend of job {about}",
    Goal.JOB_LIMIT: "the time limit of job {about}",
    Goal.JOB_GOES_ON: "job {about} going on",
    Goal.DEVICES: "devices for job {about}",
    Goal.UNPLUG: "to unplug its devices",
    Goal.CHECKPOINT: "a checkpoint",
    Goal.RETURN: "its return",
    Goal.RETURN_TO: "return to {about}",
    Goal.MOVE: "move",
    Goal.MOVE_TO: "move to {about}",
    Goal.REQUEUE: "requeue",
    Goal.REQUEUE_JOB: "requeue of job {about}",
    Goal.PLACE: "its place on {about}",
    Goal.PILOT: "a pilot",
    Goal.PILOT_TOLD: "telling pilot {about} when its room goes",
    Goal.REMOVAL: "removal",
    Goal.MACHINES: "machines of its own",
    Goal.OTHER: "{about}",
}


def _full(facts: Mapping[str, Any]) -> str:
    left = Resources(facts["left_cpus"], facts["left_memory_mb"])
    shape = Resources(facts["cpus"], facts["memory_mb"])
    return f"{facts['host']} has {left} left, an instance takes {shape}"


def _came_to_nothing(facts: Mapping[str, Any]) -> str:
    tries = f"{facts['times']} times in a row" if facts["times"] > 1 else "once"
    again = f", next try after {facts['wait_s']:.0f} s: {facts['said']}"
    return f"that failed {tries}{again}"


def _unsure_copy(facts: Mapping[str, Any]) -> str:
    jobs = facts["jobs"].replace(", ", " ")
    return f"{facts['runs']}; to give up the copy and start over: scontrol requeue {jobs}"


def _for_more(facts: Mapping[str, Any]) -> str:
    hosts = f"none of {facts['hosts']} hosts" if facts["hosts"] > 1 else "no host"
    return f"{hosts} has room for another instance ({facts['host']}: {facts['why']})"


def _wanted_soon(facts: Mapping[str, Any]) -> str:
    less = f"less than {facts['pays_s']:.0f} s" if "pays_s" in facts else "no waiting job has a time limit"
    return f"Slurm wants it again in {facts['wanted_in_s']:.0f} s: {less}"


def _apart(facts: Mapping[str, Any]) -> str:
    one, many = facts["instances"] == 1, f"fewer than {facts['instances']}"
    if facts.get("alone"):
        free = "no instance is free of other jobs" if one else f"{many} instances are free of other jobs"
    else:
        memory = f" and {facts['memory_mb']} MB" if facts["memory_mb"] else " and all of the memory"
        piece = counted(facts["cpus"], "CPU") + (memory if facts["memory_mb"] or facts["whole"] else "")
        free = f"{'no instance has' if one else f'{many} instances have'} {piece} left in one piece"
    return f"{free} (free CPUs in all: {facts['free_cpus']})"


def _stays(then: str) -> str:
    return (
        "[job {job} is expected to stay][{budget} is expected to hold] for {soon_s:.0f} to {late_s:.0f} s, "
        "and {workload} can stand still for {left_s:.0f} s: " + then
    )


def _not_suspended(facts: Mapping[str, Any]) -> str:
    return f"Slurm will not ({facts['said']}); {instead(Way(facts['way']))} (unsuspendable.way)"


_INSTEAD = {
    Way.EXTEND: "its time limit is raised by the time for which it stands still",
    Way.MOVE: "it goes on at another host once one has room; its time limit is raised meanwhile",
    Way.REQUEUE: "it starts over",
    Way.WAIT: "its time limit runs meanwhile",
}


_CODES: dict[Code, str | Callable[[Mapping[str, Any]], str]] = {
    Code.NEVER_READ: "{source} has not been read yet[ ({said})]",
    Code.STALE: "our picture of {source} is {age_s:.0f} s old[ ({said})]",
    Code.BARRED: "{said}",
    Code.NOT_BELIEVED: "{said}",
    Code.READ_MORE_OFTEN: ("believed once {readings} readings of {source} say the same for {needed_s:.0f} s"),
    Code.SEEN_LONGER: "believed once {host} has shown it for {needed_s:.0f} s",
    Code.TAKEN_OVER_LATELY: (
        "it was taken over lately, and an earlier daemon may have begun to move it: "
        "believed once all hosts were read {needed_s:.0f} s later"
    ),
    Code.READ_LATELY: "Slurm shows no job on it: believed once it has been read for {needed_s:.0f} s",
    Code.LIMIT: "{key} = {most} is reached[ on {host}]",
    Code.RAMP: "{key}: {count} in the last minute, and the ramp allows {most}",
    Code.BUDGET: "the budget of this hour allows {most} instances",
    Code.BUDGET_DISRUPTIONS: "the budget of this hour allows {most} at the same time",
    Code.CALL_FAILED: "{said}",
    Code.UNSETTLED: "its steps did not settle after {count} of them; please report this",
    Code.STEP_FAILED: (
        "[{host}: ]deciding about it failed with {said}: until that is over it is left alone, but for a "
        "pause where its host is wanted; this is a defect, please report it with the daemon's log"
    ),
    Code.HOST_UNSEEN: "{host} has not been seen yet",
    Code.HOST_UNREACHABLE: "{host} cannot be reached[: {said}]",
    Code.HOST_UNPROVEN: "{host} has not proven itself: {said}",
    Code.HOST_NOT_NAMED: (
        "the policy file no longer names its host {host}, so nobody looks there; "
        "name the host again until the node is gone"
    ),
    Code.HOST_TAKEN: "{host} was given to job {jobs}",
    Code.HOST_CLAIMED: "a hook says that {why}; Slurm does not show it yet",
    Code.HOST_MAINTENANCE: "{host} is being emptied for its maintenance",
    Code.HOST_FULL: _full,
    Code.HOST_KEEPS: "only {most} may stay on {host}: {said}",
    Code.HOST_FAILS: (
        "{count} instances in a row failed on host {host}, so none is made there for "
        "{rest_s:.0f} s; the last one: {said}"
    ),
    Code.HOST_UNSETTLED: "{host} has not been free for comeback.settle_s = {settle_s:g} s yet",
    Code.HOST_BUSY_LONG: "{host} is busy, by its jobs' limits, until after {rung} is over",
    Code.MOVES_LATER: "it moves once it has stood still for {after_s:g} s (`comeback.move_after_s`)",
    Code.MOVES_NOT: "it cannot move as it is",
    Code.HOST_SHUT: (
        "{why}, and nobody has {host}: open it, or give it up with `backfill evict {host}`"
        "[; once it has been drained for {most_s:g} s, the ladder ends by itself]"
    ),
    Code.NO_HOST: "{reasons}[; {others} others likewise]",
    Code.NODE_UNKNOWN: "Slurm does not know {node}, the node of host {host}",
    Code.NODE_SHUT: "Slurm shows {node} as {state}[ ({said})]",
    Code.GAP: "the gap on {host} is not worth it: {why}",
    Code.WANTED_NOW: "Slurm is about to use it",
    Code.WANTED_SOON: _wanted_soon,
    Code.DEVICES_ONE_JOB: "devices of {host} serve one job at a time, and {node} has some",
    Code.DEVICES_ONE_USER: "devices of {host} serve one user at a time, and {node} has some",
    Code.DEVICES_FEW: ("{host} has {free} of {every} virtual functions for others, {functions} are needed"),
    Code.FUNCTIONS_FREE: ("{host} has {free} of {every} virtual functions free, {functions} are asked for"),
    Code.DEVICES_TAKEN: "{holder} holds devices of {host}",
    Code.SHARED_MEMORY: "{host} has {left_mb} MB left, {region_mb} MB are to be shared there",
    Code.NO_SHARING: "machines on {host} cannot share memory (--ivshmem)",
    Code.NO_NETWORK: "machines on {host} cannot have network {network}",
    Code.NO_IMAGE: "{host} has no image {image}",
    Code.NO_SIZE: "{host} has no flavour with {cpus} CPUs and {memory_mb} MB",
    Code.NUMA_FULL: "no NUMA node of {host} has {cpus} CPUs and {memory_mb} MB left",
    Code.NUMA_SMALL: (
        "no NUMA node of {host} can have {cpus} CPUs and {memory_mb} MB for instances "
        "(placement.larger_than_numa)"
    ),
    Code.MEMORY_TO_DISK: "memory on {host} would not survive its maintenance",
    Code.CLOSED: "{subject} was closed by hand: {said}",
    Code.ARRIVING: "an instance is on its way to {host}",
    Code.COMING: "{instance} is on its way to {host}",
    Code.PARENT_IN_MAKING: "a parent of clones is being made on {host}",
    Code.STILL_RUNS: "{instance} still runs on {host}",
    Code.STILL_IN_MEMORY: "{instance} still holds memory of {host}",
    Code.MAY_RUN: "it is not known whether {instance} runs on {host}: {said}",
    Code.NOT_SHOWN: "{node} ran on {host}, which does not show it any more",
    Code.MAY_BE_THERE: "{host} cannot be reached ({said}): its instance may still be there",
    Code.MAY_BE_ON: "{hosts} has not been read since: its instance may be there",
    Code.LEFT_OVER: (
        "no record and no host has it; once that has been so for {needed_s:.0f} s it is removed from Slurm, "
        "and jobs on it are given back before that"
    ),
    Code.LEFT_OVER_STILL: (
        "no record and no host has it, and job {jobs} may stand still in its instance on a host that the "
        "policy file does not name; name that host again, or give the instance up"
        "[; to start job {again} over: scontrol requeue {again}]"
        "[; to end job {fixed}, which must not start over: scancel {fixed}]"
    ),
    Code.UNPLACED: (
        "Slurm shows {nodes}, and no host has shown where their instances are; "
        "waiting for that, {needed_s:.0f} s at most"
    ),
    Code.UNREAD_SINCE: "{host} has not been read since: its instance may still be there",
    Code.INSTANCE_GONE: "its instance is gone from {host}",
    Code.INSTANCE_OFF: "its guest is {state} on {host}",
    Code.INSTANCE_RESTARTED: "somebody restarted its guest by hand",
    Code.INSTANCE_UNKNOWN: "its state on {host} is not known: {said}",
    Code.INSTANCE_ODD: "{said}",
    Code.JOURNAL_BEHIND: (
        "the journal knows generation {known} of it, but {host} has generation {generation}: "
        "the journal is behind[; {said}]"
    ),
    Code.SEVERAL_COPIES: (
        "{hosts} show it, and nobody knows which is right: remove it by hand from all but one"
    ),
    Code.NOT_NAMED: "the policy file does not know its name",
    Code.NOT_NAMED_BUSY: (
        "the policy file no longer names it, but job {jobs} is on it; "
        "name it in instances again until that job has ended"
    ),
    Code.NOT_IN_SLURM: "Slurm does not know its node",
    Code.RUN_UNKNOWN: "nobody can tell whether its copy of job {job} is of that job's restart {restarts}",
    Code.COPY_UNSURE: _unsure_copy,
    Code.COPY_REQUEUED: (
        "Slurm has requeued job {job} (restart {restarts}, the copy here is of restart {copied})"
    ),
    Code.COPY_ELSEWHERE: "Slurm shows job {job} as {state} on {nodes}",
    Code.COPY_BESIDE: (
        "{stale}: that copy must not run again, nor job {jobs} beside it in the same memory, which "
        "is kept standing still; Slurm may begin the new run only when the copy is gone"
        "[; to start job {again} over: scontrol requeue {again}]"
        "[; to end job {fixed}, which must not start over: scancel {fixed}]"
    ),
    Code.PATIENCE_OVER: (
        "job {job} has stood still for longer than the {patience_s:.0f} s that were left of its patience"
    ),
    Code.STAYS_SHORT: _stays("it waits"),
    Code.STAYS_PERHAPS: _stays("it waits, since no other host has room"),
    Code.STAYS_MOVE: _stays("it goes on at another host, which has room"),
    Code.STAYS_ROOM: _stays("it waits for a job that may end in time at another host, to go on there"),
    Code.STAYS_THROTTLE: _stays("it goes on with next to no CPU time"),
    Code.STAYS_REQUEUE: _stays("neither this host nor another has room: it goes back to the queue now"),
    Code.STAYS_LONG: _stays("no other host has room, and its ladder has no requeue"),
    Code.ROOM_PROMISED: "once its job has ended, its room is for stopped work that can hardly wait",
    Code.ROOM_FOR_STOPPED: "stopped work that can hardly wait ({count} nodes) goes first",
    Code.NOT_PROVEN: "{check} is not proven: {said}[; {remedy}]",
    Code.NO_RUNG_WORKED: (
        "no rung of the ladder has stopped it ({rung} did not work within {within_s:g} s); "
        "trying again[; {said}]"
    ),
    Code.DISK_QUEUE: "{key} = {most} MB would be exceeded[: {others} first]",
    Code.HOLDS_DEVICES: "a guest that stands still cannot let go of the devices of job {job}",
    Code.CAME_TO_NOTHING: _came_to_nothing,
    Code.UNDER_WAY: "waiting for it",
    Code.FAILED_BEFORE: "{said}",
    Code.MANY_SILENT: (
        "it has not answered Slurm for {silent_s:g} s, but {count} nodes do not: "
        "this looks like a broken network"
    ),
    Code.GUEST_ANSWERS: (
        "it has not answered Slurm for {silent_s:g} s, but its guest answers its hypervisor: "
        "see whether slurmd runs in it, and the network between them"
    ),
    Code.BROKEN_NETWORK: (
        "{count} of {every} nodes are silent at once, more than liveness.at_most_percent allows "
        "({most}): this looks like a broken network; if they are dead, set them DOWN by hand"
    ),
    Code.DRAINED_BY_OTHERS: "somebody else drained it: {said}",
    Code.IMAGE_CPUS: "image {image} may have {most} CPUs, and {there} instances are there",
    Code.IMAGE_MEMORY: "image {image} may have {most} MB, and {there} instances are there",
    Code.IMAGE_RATE: "{most} instances of image {image} were begun within a minute, its limit",
    Code.IMAGE_FAILS: (
        "{count} instances in a row failed on the image on several hosts, so none is made there for "
        "{rest_s:.0f} s; the last one: {said}"
    ),
    Code.NO_NAME: "no name is left in instances.names",
    Code.NO_HOST_FOR_MORE: _for_more,
    Code.EARLIER_ORDER: "an earlier order comes first",
    Code.FEW_NAMES: "only {names} of {size} names are free in instances.names",
    Code.FELLOWS_APART: "{host} has a machine of the job, and each is to be on another host",
    Code.FELLOWS_TOGETHER: "all of them are to be on {host}",
    Code.FEW_PLACES: "there is room for only {places} of {size} now[; {why}]",
    Code.MEMBER_GIVEN_UP: "{node} failed {failures} times, last with: {said}",
    Code.MEMBER_REMOVED: "{node} was removed before the fleet was complete",
    Code.FLEET_LATE: "it was not complete within {within_s:.0f} s",
    Code.JOB_TOO_BIG: (
        "it wants more than one instance offers ({cpus} CPUs, {memory_mb} MB on one node), or more "
        "than demand.max_nodes = {nodes} nodes"
    ),
    Code.JOB_APART: _apart,
    Code.QUOTA: "the quota of {cpus} CPUs for {whose} is reached",
    Code.ENVIRONMENT: (
        "user {user} of account {account} may not have environment {environment}: it is for {allowed}"
    ),
    Code.MAY_HAVE_JOBS: "job {jobs} may be on it: waiting for it",
    Code.SHOWN_BUSY: "Slurm shows it as {state} without a job: waiting for it",
    Code.HIDDEN_BUSY: "Slurm does not show it, yet shows job {jobs} on it: not believed",
    Code.JOB_RUNS: "a job runs on it; its fleet waits for that job",
    Code.JOBS_GO_ON: "its jobs are running again",
    Code.JOB_WAITS: "job {job} waits for {nodes}",
    Code.JOB_MISSING: "Slurm does not show job {job}, which may still be there: waiting for it",
    Code.JOB_NOT_SHOWN: "Slurm has not shown job {job} on {node} yet",
    Code.JOB_UNSEEN: "Slurm does not show job {job} now, so that nobody knows whether it may start over",
    Code.JOB_STILL_SEEN: "job {job} is still seen there",
    Code.JOB_RESUMED: (
        "somebody resumed it in Slurm, but its instance stands still: it is suspended again "
        "and goes on when {host} is free"
    ),
    Code.FELLOWS_STAND: "{nodes}, of the same job, still stands still",
    Code.SEVERAL_JOBS: "{count} jobs run on it: one alone is saved",
    Code.NODES_NOT_READY: "not all of its nodes are ready nodes of ours",
    Code.KEEPS_NONE: "{host} keeps no checkpoints",
    Code.LEFT_TO_END: (
        "it was there before that could be seen, so it is left until it ends, or until scontrol requeue"
    ),
    Code.NO_REQUEUE: "it was submitted as --no-requeue",
    Code.NO_REQUEUE_AWAITED: "job {jobs} was submitted as --no-requeue: waiting for it",
    Code.NO_REQUEUE_UNLOST: ("job {job} was submitted as --no-requeue, and nothing shows its copy as lost"),
    Code.SUSPENDED_BY_OTHERS: "somebody else suspended it: if it were requeued, it would start at once",
    Code.SLURM_REFUSES: "Slurm refuses to requeue its jobs",
    Code.WILL_NOT_SUSPEND: _not_suspended,
    Code.DEADLINE: "job {job} would miss its deadline if it waited for {host}",
    Code.NO_DEVICES_YET: "{node} has no {device} yet[: {said}]",
    Code.DEVICES_HELD: "job {job} holds the devices on {host}[, in {instance}]",
    Code.SHARED_OTHERWISE: "job {job} shares {region_mb} MB on {host} already",
    Code.MACHINES_KEY: "its request for machines of its own has an unknown key '{key}': use {keys}",
    Code.MACHINES_VALUE: "its request for machines of its own says {key}='{value}': use {allowed}",
    Code.MACHINES_TWICE: "its request for machines of its own says {key} more than once",
    Code.MACHINES_UNABLE: ("it asks for {what}, which its machines cannot have: leave that out"),
    Code.MACHINES_IMAGE: "there is no image {image}: use one of {images}",
    Code.MACHINES_NETWORK: "it asks for network {network}, and there is none of that name[: use {networks}]",
    Code.NETWORK_OF_OTHERS: (
        "user {user} of account {account} may not have network {network}: it is for {allowed}"
    ),
    Code.MACHINES_SMALL: (
        "a machine of {shape} gives {memory_mb} MB to jobs, and the job wants {cpus} CPUs and {needs_mb} MB "
        "on each node: ask for larger machines, or for less"
    ),
    Code.MACHINES_BEYOND: (
        "{many} on each of its nodes take {cpus} CPUs and {memory_mb} MB, and the job got {got_cpus} CPUs"
        "[ and {got_mb} MB] there"
    ),
    Code.MACHINES_DISK: (
        "it asks for a disk of {disk_gb} GB for each machine (--disk-size), and own_machines.most_disk_gb "
        "allows {most_gb}: ask for a smaller one"
    ),
    Code.MACHINES_ELSEWHERE: "it got {node}, where no machine can be created: it is not among `hosts`",
    Code.MACHINES_CLAIMED: "the room of {host} is not proven free for it yet",
    Code.MACHINES_MANY: "{what} can never be had: {key} = {most}",
    Code.MACHINES_FUNCTIONS: (
        "it asks for {functions} virtual functions for each machine (--sriov), "
        "and no host has more than {most}"
    ),
    Code.MACHINES_NEVER: "{what} can never be had: all hosts together have room for {places}",
    Code.MACHINES_FIRST: (
        "job {job} has been passed over for {passed_s:.0f} s and comes first (own_machines.passed_over_s)"
    ),
    Code.MACHINES_UNUSED: (
        "its job did not begin on them within {within_s:.0f} s (own_machines.start_within_s)[: {waits}]"
    ),
    Code.MACHINES_GIVEN_BACK: "{said}",
    Code.MACHINE_LOST: "[{node}, ]one of them, was lost before the job began",
    Code.MACHINE_OF_JOB: "{node} is job {job}'s own",
    Code.FELLOW_KEPT_OFF: "{node}, a machine of the same job, stands still: {host} is wanted",
    Code.POOL_SILENT: "the pool does not answer: {said}",
    Code.POOL_UNREAD: "the pool has not been asked yet",
    Code.POOL_EMPTY: "no payload waits in the pool",
    Code.NO_IDLE_ROOM: "no room is idle for any of the {count} payloads that wait",
    Code.PILOT_GAP: (
        "the longest time for which a room is free is {longest_s:.0f} s, less than supply.shortest_s = "
        "{needed_s:.0f} s"
    ),
    Code.PILOTS_FAIL: (
        "{count} pilots have failed, the last of them job {job}: read its output; the next one "
        "is sent when Slurm has forgotten one of them"
    ),
    Code.PILOT_NAME: (
        "job {job} of user {user} has its name, and Slurm would let the pilot wait for it: scancel {job}"
    ),
    Code.ANOTHER_LIFE: "{host} now shows generation {generation} of it",
    Code.SHOWN_AS: "{host} shows it as {state}",
    Code.JOB_ON_IT: "job {job} is on it",
    Code.JOB_SHOWN: "Slurm shows job {job} on it",
    Code.NO_REQUEUE_JOB: "job {job} was submitted as --no-requeue",
    Code.HEARD_AGAIN: "Slurm hears it again",
    Code.HOST_FREE_AGAIN: "{host} is free again",
    Code.HOST_NOT_OFF: "nobody says any more that {host} is off for good",
    Code.ROOM_NOT_WANTED: "its room on {host} is not wanted back any more",
    Code.NO_OTHER_RUN: "Slurm no longer shows another run of its jobs",
    Code.RUN_NOT_SHOWN: "Slurm no longer shows this run of job {job} on it",
    Code.FEW_JOBS: "it shows {shown} of {every} jobs, and not that the others ended: not believed yet",
    Code.FEW_JOBS_TORN: (
        "it shows {shown} of {every} jobs, and not that the others ended, but {node} as given to one: "
        "not believed"
    ),
    Code.NO_INSTANCES: "it shows no instance where there were {names}: not believed yet",
    Code.OTHER: "{said}",
}


def sentence(reason: Reason) -> str:
    """Why not, for people; where it is known what it was wanted for, that comes first."""
    facts = {fact.name: _shown(fact.value) for fact in reason.facts}
    form = _CODES[reason.code]
    text = form(facts) if callable(form) else _filled(form, facts)
    return f"{facts['found']}; {text}" if facts.get("found") else text


def sentences(reasons: Iterable[Reason]) -> str:
    """All of them, one after the other."""
    return "; ".join(sentence(reason) for reason in reasons)


def goal(refusal: Refusal) -> str:
    """Return what was wanted, as a noun: `a new instance`, `return to bm1`."""
    return _GOALS[refusal.wanted].format(about=refusal.about)


def why(refusal: Refusal) -> str:
    """Why it is not done."""
    return sentence(refusal.reason)


def line(refusal: Refusal) -> str:
    """All of a refusal: about whom, what, and why not."""
    return f"{refusal.subject}: {goal(refusal)} refused: {why(refusal)}"


def instead(way: Way) -> str:
    """Return what becomes of a job that stands still although Slurm would not suspend it."""
    return _INSTEAD[way]


def _filled(form: str, facts: Mapping[str, Any]) -> str:
    def part(found: re.Match[str]) -> str:
        names = _FIELD.findall(found[1])
        return found[1] if all(facts.get(name) for name in names) else ""

    return string.Formatter().vformat(_OPTIONAL.sub(part, form), (), facts)


def _shown(value: object) -> Any:
    if isinstance(value, Reason):
        return sentence(value)
    if isinstance(value, tuple):
        if value and isinstance(value[0], Reason):
            return sentences(value)
        return ", ".join(map(str, value))
    return value
