"""The commands that only look: status, hosts, nodes, instances and plan."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from backfill.core.model.quantities import counted
from backfill.engine.leak_desk import leaks_told
from backfill.ports.errors import DriverError
from backfill.ui import wording
from backfill.ui.client import (
    USUAL_POLICY,
    Answer,
    AskError,
    Asking,
    add_policy,
    add_reading,
    guarded,
    names_of,
    present,
    print_json,
)
from backfill.ui.errands import awaited
from backfill.ui.parser import BAD_DATA, NO, OK, UNAVAILABLE, USAGE, say
from backfill.ui.terminal import age, emphasis, local_time, table

_MOST_REFUSALS = 8


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    add_reading(parser)


def run_status(args: argparse.Namespace) -> int:
    """Ask and print."""
    return present(args, "status", _show_status)


def _show_status(answer: Answer, client: Asking) -> None:
    now_s = answer["now_s"]
    print(emphasis(f"cluster {answer['cluster']}") + f" at {local_time(now_s)}")
    if answer["clock"]:
        print(emphasis(f"clock: {answer['clock']}", "33"))
    print(answer["sentence"])
    print()
    waiting = answer["low_priority_jobs_waiting"]
    print(f"queue     {counted(waiting, 'low-priority job')} waiting")
    phases = [f"{n} {phase}" for phase, n in answer["phases"].items() if n]
    print(f"nodes     {', '.join(phases) or 'none'}")
    print(f"policy    {_policy(answer['policy'], now_s)}")
    print(f"pictures  {'; '.join(_pictures(answer['sources'], now_s)) or 'nothing was read yet'}")
    _section("hooks", [emphasis(text, "31") for text in _unheard(answer)])
    _section("work lost, by day (UTC)", _lost(answer["work_lost"]))
    _section(
        "payloads, by day (UTC)", [*_pool(answer.get("pool"), now_s), *_payloads(answer.get("payloads"))]
    )
    _section("given away", [_claim(c, now_s) for c in answer["claims"]])
    operations = answer["operations"]
    _section("under way", [wording.operation(o, now_s) for o in operations if o["running"]])
    _section("failed", [wording.operation(o, now_s) for o in operations if not o["running"]])
    refusals = answer["refusals"]
    lines = [wording.refusal(r) for r in refusals[:_MOST_REFUSALS]]
    if len(refusals) > _MOST_REFUSALS:
        lines.append(f"and {len(refusals) - _MOST_REFUSALS} more: backfill plan")
    _section("not done", lines)


def _policy(policy: dict[str, Any], now_s: float) -> str:
    """Say which file is in force, and why its present state is not."""
    text = policy["source"] or "not from a file"
    if policy["loaded_s"]:
        text += f", in force for {age(now_s - policy['loaded_s'])}"
    if policy["problems"]:
        text += emphasis(f"; not so what stands there now: {policy['problems'][0]}", "31")
    return text


_MOST_LOST = 12


def _lost(lines: list[dict[str, Any]]) -> list[str]:
    """Say how much work came to nothing, by day, workload and cause, and all of it together."""
    if not lines:
        return []
    shown = [
        f"{line['day']}  {line['core_s'] / 3600:.2f} core h of {counted(line['runs'], 'run')}, "
        f"by {line['cause']}{' of ' + line['workload'] if line['workload'] else ''}"
        for line in lines[:_MOST_LOST]
    ]
    core_h, runs = sum(line["core_s"] for line in lines) / 3600, sum(line["runs"] for line in lines)
    return [*shown, f"in all    {core_h:.2f} core h of {counted(runs, 'run')}"]


_MOST_PAYLOAD_DAYS, _MOST_PILOTS = 7, 8


def _pool(pool: dict[str, Any] | None, now_s: float) -> list[str]:
    """Say what waits outside, where somebody is asked."""
    if pool is None:
        return []
    waiting = f"{counted(pool['idle'], 'payload')} waiting, {age(now_s - pool['seen_s'])} ago"
    known = [waiting] if pool["seen_s"] else ["the pool has not answered yet"]
    if pool["problem"]:
        return [*known, emphasis(f"no answer now: {pool['problem']}", "31")]
    return known + [emphasis(f"access point {name} does not answer", "31") for name in pool["silent"]]


def _payloads(told: dict[str, Any] | None) -> list[str]:
    """Say what pilots have brought, by day and by pilot, and what of it was lost and why."""
    days, pilots = (told["days"], told["pilots"]) if told is not None else ((), ())
    lines = [f"{day['day']}  {_brought(day)}" for day in days[:_MOST_PAYLOAD_DAYS]]
    lines += [f"pilot {pilot['pilot']}  {_brought(pilot)}" for pilot in pilots[:_MOST_PILOTS]]
    if len(pilots) > _MOST_PILOTS:
        lines.append(f"and {len(pilots) - _MOST_PILOTS} more pilots: backfill status --json")
    return lines


def _brought(sums: dict[str, Any]) -> str:
    """Say what is done, and what was lost and why."""
    lost = [
        f"{one['s']:.0f} s of {counted(one['runs'], 'run')} {_by(why)}" for why, one in sums["lost"].items()
    ]
    worked = f"{counted(sums['done'], 'payload')} done in {sums['worked_s'] / 3600:.2f} h"
    return f"{worked}; lost: {', '.join(lost)}" if lost else f"{worked}; none lost"


def _by(why: str) -> str:
    return why if why.startswith("not ") else f"by {why}"


def _section(title: str, lines: list[str]) -> None:
    if lines:
        print()
        print(emphasis(title))
        for line in lines:
            print(f"  {line}")


def _pictures(sources: dict[str, Any], now_s: float) -> list[str]:
    """Say how old our knowledge is; hosts of the same age are told together."""
    same: dict[str, list[str]] = {}
    for name, source in sources.items():
        same.setdefault(_freshness(source, now_s), []).append(name)
    return [f"{wording.folded(names)} {text}" for text, names in same.items()]


def _freshness(source: dict[str, Any], now_s: float) -> str:
    seen_s = source["seen_s"]
    text = f"{age(now_s - seen_s)} old" if seen_s else "never read"
    if source["problem"]:
        return emphasis(f"{text}, cannot be read now: {source['problem']}", "31")
    return text


def _unheard(answer: Answer) -> list[str]:
    """Hooks that do not count: hosts are not given back through them."""
    return [wording.unheard(u, answer["now_s"]) for u in answer.get("hooks_not_believed", ())]


def _claim(claim: dict[str, Any], now_s: float) -> str:
    what = "the room" if claim["hosts"] else "its devices"
    waits = f"; its start waits for {what}" if claim["waiting"] else ""
    length = age(now_s - claim["since_s"])
    given = wording.folded(claim["hosts"] or claim["nodes"])
    return f"{given} to job {claim['job_id']} for {length}{waits}"


def add_hosts_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    add_reading(parser)


def run_hosts(args: argparse.Namespace) -> int:
    """Ask and print."""
    return present(args, "hosts", _show_hosts)


def _show_hosts(answer: Answer, client: Asking) -> None:
    hosts = answer["hosts"]
    if not hosts:
        print("no host has been seen yet; `backfill status` tells why")
        return
    headers = ("HOST", "STATE", "CPUS", "BUSY", "MEMORY", "JOBS", "INSTANCES", "WHY")
    table(headers, [_host_row(h) for h in hosts])


def _host_row(host: dict[str, Any]) -> tuple[str, ...]:
    state, why = wording.host_state(host)
    return (
        host["name"],
        state,
        str(host["cpus"]),
        "-" if host["busy"] is None else f"{host['busy']:.0%}",
        f"{host['memory_mb']} MB",
        ",".join(wording.takers(host)) or "-",
        wording.folded(host["instances"]),
        why,
    )


def add_nodes_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("node", metavar="NODE", nargs="?", help="only these, such as vn[1-3]")
    add_reading(parser)


def run_nodes(args: argparse.Namespace) -> int:
    """Ask and print."""

    def work(client: Asking) -> int:
        if args.node is not None:
            names_of(args.node)  # a mistake in it needs no daemon
        answer = (client.ask_exactly if args.json else client.ask)("nodes")
        if args.node is not None:
            answer = chosen(answer, args.node)
        if args.json:
            print_json(answer)
        else:
            _show_nodes(answer, client)
            for node in answer["nodes"] if args.node else ():
                _show_proof(node)
        return OK

    return guarded(work, args)


def chosen(answer: Answer, hostlist: str) -> Answer:
    """Leave only these nodes in the answer. Raises AskError for one that is not there."""
    wanted = names_of(hostlist)
    by_name = {n["name"]: n for n in answer["nodes"]}
    for name in wanted:
        if name not in by_name:
            raise AskError(wording.unknown("node of ours", name, by_name), NO)
    return {**answer, "nodes": [by_name[name] for name in wanted]}


def _show_nodes(answer: Answer, client: Asking) -> None:
    nodes = answer["nodes"]
    if not nodes:
        print("there is no virtual node now; `backfill plan` tells what would make one")
        return
    now_s = client.ask("status")["now_s"]
    headers = ("NODE", "PHASE", "FOR", "HOST", "SLURM", "JOBS", "WHY")
    table(headers, [_node_row(n, now_s) for n in nodes])
    if len(nodes) > 1:
        print()
        print("; ".join(_by_phase(nodes)))


def _show_proof(node: dict[str, Any]) -> None:
    """Print what the node has proven, and what not."""
    print()
    if not node["checks"]:
        print(f"{node['name']} has not been asked to prove anything yet")
        return
    rows = [
        (c["name"], "yes" if c["ok"] else "NO", f"{c['took_s']:.3f} s", c["sentence"], c["remedy"])
        for c in node["checks"]
    ]
    table((f"{node['name']} PROVES", "HOLDS", "TOOK", "FOUND", "REMEDY"), rows)


def _node_row(node: dict[str, Any], now_s: float) -> tuple[str, ...]:
    move = f" to {node['target']}" if node["target"] else ""
    held = [h["id"] for h in node["held"]]
    return (
        node["name"],
        node["phase"],
        age(now_s - node["since_s"]),
        f"{node['host']}{move}",
        node["slurm_state"] or "-",
        ",".join(node["jobs"] or held) or "-",
        node["reason"],
    )


def _by_phase(nodes: list[dict[str, Any]]) -> list[str]:
    phases: dict[str, list[str]] = {}
    for node in nodes:
        phases.setdefault(node["phase"], []).append(node["name"])
    return [f"{len(names)} {phase}: {wording.folded(names)}" for phase, names in phases.items()]


def add_instances_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    add_reading(parser)
    parser.add_argument("--leaks", action="store_true", help="files on disk that no instance needs any more")
    parser.add_argument("--remove", action="store_true", help="with --leaks: remove them")
    add_policy(parser, "with --leaks and without --url: the policy file")


def run_instances(args: argparse.Namespace) -> int:
    """Ask the daemon and print; leaks are looked for on the hosts themselves."""
    if args.leaks:
        return show_leaks(args)
    if args.remove:
        say("--remove says what to do with --leaks; give both")
        return USAGE
    if args.config is not USUAL_POLICY:
        say("--config says where to look for --leaks; give both")
        return USAGE
    return present(args, "instances", _show_instances)


def _show_instances(answer: Answer, client: Asking) -> None:
    instances = answer["instances"]
    if not instances:
        print("no host has an instance of ours")
        return
    headers = ("INSTANCE", "HOST", "STATE", "CPUS", "MEMORY", "IN USE", "NUMA", "PHASE")
    table(headers, [_instance_row(i) for i in instances])
    for instance in instances:
        if instance["problem"]:
            print()
            print(f"{instance['name']} on {instance['host']}: {instance['problem']}")
    orphans = [i["name"] for i in instances if not i["phase"] and i["state"] != "unknown"]
    if orphans:
        print()
        print(f"without a node of ours, to be removed: {', '.join(orphans)}")


def _instance_row(instance: dict[str, Any]) -> tuple[str, ...]:
    rss_mb = instance["rss_mb"]
    return (
        instance["name"],
        instance["host"],
        instance["state"],
        str(instance["cpus"]),
        f"{instance['memory_mb']} MB",
        "-" if rss_mb is None else f"{rss_mb} MB",
        "-" if instance["numa"] is None else str(instance["numa"]),
        instance["phase"] or "-",
    )


def show_leaks(args: argparse.Namespace) -> int:
    """Look at the shared directory and at all hosts; remove only when told to."""
    if args.url:
        return guarded(lambda client: _leaks(args, awaited(client, "leaks", remove=args.remove)), args)
    from backfill.config import ConfigError, load
    from backfill.ui.assemble import leak_finders, providers

    try:
        finders = leak_finders(providers(load(args.config), None))
        return _leaks(args, leaks_told(finders, remove=args.remove))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return BAD_DATA
    except DriverError as error:
        say(str(error))
        return UNAVAILABLE


def _leaks(args: argparse.Namespace, answer: Answer) -> int:
    if args.json:
        print_json(answer)
        return OK
    if not answer["leaks"]:
        print("nothing is left over")
        return OK
    rows = [
        (leak["name"], f"{leak['size_mb']:.0f} MB", f"{leak['age_s'] / 3600:.0f} h", leak["where"])
        for leak in answer["leaks"]
    ]
    table(("LEFT OVER", "SIZE", "UNTOUCHED FOR", "WHERE"), rows)
    print("\nremoved" if args.remove else "\n`backfill instances --leaks --remove` removes them")
    return OK


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    add_reading(parser)


def run_plan(args: argparse.Namespace) -> int:
    """Ask and print."""
    return present(args, "plan", _show_plan)


def _show_plan(answer: Answer, client: Asking) -> None:
    now_s = client.ask("status")["now_s"]
    for step in answer["actions"]:
        print(f"would {_step(step)}")
    if not answer["actions"]:
        print("nothing would be begun now")
    for entry in answer["under_way"]:
        print(emphasis("under way: ", "36") + wording.operation(entry, now_s))
    if answer["awaited"]:
        print(f"awaited: a change of {wording.folded(answer['awaited'])} in Slurm")
    for refusal in answer["refusals"]:
        print(emphasis("refused: ", "33") + wording.refusal(refusal))


def _step(step: dict[str, Any]) -> str:
    """Say a step in the infinitive; phases have no verb of their own."""
    match step["t"]:
        case "SetNode":
            node = step["node"]
            return f"let {node['name']} on {node['host']} be {node['phase']}: {step['reason']}"
        case "ForgetNode":
            return f"forget {step['name']}: {step['reason']}"
        case "AnswerClaim":
            verdict = "free" if step["ok"] else "NOT free"
            return f"tell job {step['job_id']} that the room is {verdict}: {step['reason']}"
        case "EndClaim":
            return f"end the claim of job {step['job_id']}: {step['reason']}"
        case _:
            return str(step["sentence"])
