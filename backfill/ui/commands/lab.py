"""`backfill lab`: a real Slurm cluster with hypervisors on this one machine, to play with."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from backfill.lab import image, roots
from backfill.lab.cloud import guests, second
from backfill.lab.cloud.handle import CloudHandle
from backfill.lab.cluster import Lab
from backfill.lab.condor import pilots
from backfill.lab.policyfile import write_policy
from backfill.lab.spec import (
    CONDOR_SLURM,
    HYPERVISORS,
    JOB_USER,
    POOL,
    LabError,
    LabMisuseError,
    LabPermissionError,
    LabSpec,
    lab_root,
)
from backfill.ui.parser import NO, NO_PERMISSION, OK, USAGE, add_verbs, did_you_mean, say
from backfill.ui.terminal import table

_VERBS = {
    "up": "start a lab and leave it running",
    "down": "end a lab; nothing of it is left",
    "status": "machines and services of a lab",
    "shell": "a shell on a machine of the lab",
    "run": "run a command on a machine of the lab",
    "list": "the labs of this machine",
    "cloud": "a real OpenStack on this machine",
    "roots": "build what labs of other Slurm releases and hypervisors need, and show where it is",
}


def add_lab_arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands of `backfill lab`."""
    verbs = add_verbs(parser, _VERBS)
    for verb in ("up", "down", "status", "shell", "run"):
        verbs[verb].add_argument("--name", default="lab", metavar="NAME", help="the lab's name (lab)")
    for verb in ("status", "list"):
        verbs[verb].add_argument("--json", action="store_true", help="print one JSON document")
    for verb in ("shell", "run"):
        verbs[verb].add_argument("node", metavar="MACHINE", help="ctl, bm1, … or a virtual node such as vn1")
    verbs["run"].add_argument("words", metavar="-- CMD", nargs=argparse.REMAINDER, help="the command")
    _add_shape(verbs["up"])
    _add_cloud_arguments(verbs["cloud"])
    verbs["roots"].add_argument(
        "releases", metavar="RELEASE", nargs="*", help="such as 24.11, debian-13 or condor; all when left out"
    )


def _add_shape(up: argparse.ArgumentParser) -> None:
    up.add_argument("--hosts", type=int, default=2, metavar="N", help="bare-metal hosts (2)")
    up.add_argument("--cpus", type=int, default=2, metavar="N", help="CPUs of each host (2)")
    up.add_argument("--memory-mb", type=int, default=2000, metavar="MB", help="memory of each host (2000)")
    up.add_argument(
        "--slurm",
        choices=roots.RELEASES,
        help=f"release of controller, hosts and guests ({roots.INSTALLED}; with a pool {CONDOR_SLURM})",
    )
    up.add_argument(
        "--hypervisor",
        default=HYPERVISORS[0],
        metavar="RELEASE",
        help=f"libvirt and QEMU of the hosts: {' or '.join(HYPERVISORS)}, or one per"
        f" host, separated by commas ({HYPERVISORS[0]})",
    )
    for name, what in (("time", "a time server"), ("files", "a file server"), ("salt", "a Salt master")):
        up.add_argument(f"--{name}", action="store_true", help=f"{what} on the controller, used by guests")
    up.add_argument(
        "--condor",
        action="store_true",
        help="an HTCondor pool beside the cluster, and guests that can be pilots",
    )
    up.add_argument("--mpi", action="store_true", help="guests with Open MPI, for jobs on up to 8 nodes")
    up.add_argument(
        "--ce",
        action="store_true",
        help="pool, file server, and a compute element that submits through blahp",
    )
    up.add_argument(
        "--site",
        action="store_true",
        help="whole machines: systemd, accounting, control groups, users; nothing of ours",
    )
    up.add_argument("--configless", action="store_true", help="with --site: hosts fetch slurm.conf")
    up.add_argument("--no-image", action="store_true", help="no guest image and no policy file: Slurm only")


def run_lab(args: argparse.Namespace) -> int:
    """Carry out one of the subcommands."""
    verbs = {
        "up": _up,
        "down": _down,
        "status": _status,
        "shell": _shell,
        "run": _run,
        "list": _list,
        "cloud": _run_cloud,
        "roots": _roots,
    }
    try:
        return verbs[args.verb](args)
    except LabError as error:
        say(str(error))
        if isinstance(error, LabPermissionError):
            return NO_PERMISSION
        return USAGE if isinstance(error, LabMisuseError) else NO


def _up(args: argparse.Namespace) -> int:
    condor = args.condor or args.ce
    release = args.slurm or (CONDOR_SLURM if condor else roots.INSTALLED)
    recipe = None if args.no_image or args.site else image.Recipe(release, args.salt, condor, args.mpi)
    lab = Lab.up(roots.equip(_spec(args, release), _tell), progress=_tell)
    policy = write_policy(lab, image.build(_tell, recipe)) if recipe else None
    pilot = pilots.write_pilot(lab) if condor else None
    if condor:
        pilots.write_reader(lab)
    for line in next_steps(lab, policy, pilot):
        print(line)
    return OK


def _spec(args: argparse.Namespace, release: str) -> LabSpec:
    """Return the lab that the options ask for. LabMisuseError: there is none like that."""
    try:
        return LabSpec(
            name=args.name,
            hosts=args.hosts,
            cpus=args.cpus,
            memory_mb=args.memory_mb,
            hypervisor=args.hypervisor,
            hooks="none" if args.site else "slurmctld",
            slurm_version=release,
            condor=args.condor or args.ce,
            ce=args.ce,
            mpi=args.mpi,
            time=args.time,
            files=args.files or args.ce,
            salt=args.salt,
            site=args.site,
            configless=args.configless,
        )
    except LabError as error:
        raise LabMisuseError(str(error)) from error


def next_steps(lab: Lab, policy: Path | None, pilot: Path | None = None) -> list[str]:
    """Return lines about what a newcomer can do with a lab that has just come up."""
    name = "" if lab.spec.name == "lab" else f" --name {lab.spec.name}"
    steps = [
        f"lab {lab.spec.name} is up: controller ctl, hosts {', '.join(lab.hosts)}",
        f"  backfill lab shell{name} ctl          a shell there: sinfo, sbatch, squeue",
    ]
    if policy is not None:
        steps += [
            f"  backfill lab run{name} ctl -- backfill daemon --config {policy}",
            f"  export BACKFILL_SOCKET={lab.daemon_socket}; backfill status",
        ]
    if pilot is not None:
        sbatch = f"sbatch --uid={JOB_USER} -D /tmp -o /dev/null {pilot}"
        steps += [
            f"  backfill lab run{name} ctl -- {sbatch}",
            f"  backfill lab run{name} {POOL} -- condor_status          the pool's pilots",
        ]
    return [*steps, f"  backfill lab down{name}               end it"]


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _down(args: argparse.Namespace) -> int:
    lab = _known(args.name)
    was = lab.status().phase
    lab.down()
    print(f"lab {args.name} " + ("was not up" if was == "down" else "is down"))
    return OK


def _known(name: str) -> Lab:
    """Return a handle on a lab that is or was; LabError with the nearest name if there is none."""
    described = lab_root() / name / "spec.json"
    if not described.exists():
        names = lab_names()
        hint = did_you_mean(name, names) or (
            f"; there are {', '.join(names)}" if names else "; start one with: backfill lab up"
        )
        raise LabError(f"there is no lab '{name}'{hint}")
    return Lab(LabSpec.from_json(json.loads(described.read_text())))


def lab_names() -> list[str]:
    """Every lab that is or was."""
    return sorted(path.parent.name for path in lab_root().glob("*/spec.json"))


def machine_names(name: str) -> list[str]:
    """Machines of a lab in which one can have a shell; LookupError if there is no such lab."""
    try:
        return [m for m in _known(name).spec.machines if m != "switch"]
    except LabError as error:
        raise LookupError(name) from error


def _status(args: argparse.Namespace) -> int:
    status = _known(args.name).status()
    if args.json:
        print(json.dumps(status.to_json()))
    else:
        detail = f": {status.detail}" if status.detail else ""
        print(f"lab {status.name} is {status.phase}{detail}")
        rows = [
            (name, str(machine.pid), _services(machine.services)) for name, machine in status.machines.items()
        ]
        if rows:
            print(f"directory {status.directory}; guests run by {status.domain_type or 'qemu'}")
            table(("MACHINE", "PID", "SERVICES"), rows)
    return OK if status.phase == "up" else NO


def _services(services: dict[str, int]) -> str:
    return ", ".join(name if pid else f"{name} (down)" for name, pid in services.items()) or "-"


def _list(args: argparse.Namespace) -> int:
    found = [_known(name).status() for name in lab_names()]
    if args.json:
        print(json.dumps([s.to_json() for s in found]))
    elif found:
        rows = [(s.name, s.phase, ", ".join(s.machines) or "-", s.directory) for s in found]
        table(("LAB", "PHASE", "MACHINES", "DIRECTORY"), rows)
    else:
        print("no lab yet; start one with: backfill lab up")
    return OK


def _roots(args: argparse.Namespace) -> int:
    for release in args.releases or roots.NAMES:
        if release in (roots.INSTALLED, HYPERVISORS[0]):
            print(f"{release} /")
        else:
            print(f"{release} {roots.build(release, _tell)}")
    return OK


def _shell(args: argparse.Namespace) -> int:
    lab = Lab.attach(args.name)
    if args.node.startswith("vn"):
        return _become(lab.shell_command(args.node))
    prompt = {"PS1": f"[{args.name} {args.node}] \\w\\$ ", "TERM": os.environ.get("TERM", "dumb")}
    return _become(lab.command(args.node, ["bash", "--norc"], {**_environment(lab), **prompt}))


def _run(args: argparse.Namespace) -> int:
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise LabMisuseError(f"no command is given: backfill lab run {args.node} -- COMMAND")
    lab = Lab.attach(args.name)
    if args.node.startswith("vn"):
        srun = ["srun", "--partition=htc", f"--nodelist={args.node}", *words]
        return _become(lab.command("ctl", srun))
    return _become(lab.command(args.node, words, _environment(lab)))


def _environment(lab: Lab) -> dict[str, str]:
    """In the lab `backfill` is found, and finds the daemon that runs there."""
    ours = str(Path(sys.executable).parent)
    return {"PATH": f"{ours}:{lab.path}", "BACKFILL_SOCKET": str(lab.daemon_socket)}


def _become(argv: list[str]) -> int:
    """Turn into the command, so that the terminal and all signals are its own."""
    sys.stdout.flush()
    os.execvp(argv[0], argv)  # noqa: S606 - an argument list of our own, no shell wanted


_CLOUD_VERBS = {
    "up": "start the cloud and leave it running",
    "down": "end the cloud; nothing of it is left",
    "status": "show the cloud's services",
    "run": "run a command in the cloud's network, with its credentials",
}


def _add_cloud_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what may follow `backfill lab cloud`."""
    made = parser.add_subparsers(dest="cloud_verb", metavar="COMMAND", required=True)
    for verb, about in _CLOUD_VERBS.items():
        one = made.add_parser(verb, help=about, description=f"{about[0].upper()}{about[1:]}.")
        one.add_argument("--name", default="cloud", metavar="NAME", help="the cloud's name (cloud)")
        if verb == "up":
            one.add_argument(
                "--guests",
                action="store_true",
                help="also compute hosts c3 and c4 with real guests, each in its own zone",
            )
            one.add_argument("--heat", action="store_true", help="also Heat, which makes stacks")
        if verb == "status":
            one.add_argument("--json", action="store_true", help="print one JSON document")
        if verb == "run":
            one.add_argument("words", metavar="-- CMD", nargs=argparse.REMAINDER, help="the command")


def _run_cloud(args: argparse.Namespace) -> int:
    """Carry it out; LabError is the caller's to report."""
    cloud = CloudHandle(args.name)
    match args.cloud_verb:
        case "up":
            return _cloud_up(cloud, args.guests, args.heat)
        case "down":
            was = cloud.status().phase
            cloud.down()
            print(f"cloud {cloud.name} " + ("was not up" if was == "down" else "is down"))
            return OK
        case "status":
            return _cloud_status(cloud, as_json=args.json)
        case _:
            return _run_in_cloud(cloud, args.words)


def _cloud_up(cloud: CloudHandle, real_guests: bool, with_heat: bool) -> int:
    cloud.up(
        lambda line: print(line, file=sys.stderr, flush=True), real_guests=real_guests, with_heat=with_heat
    )
    services = "Keystone, Nova (hosts c1, c2, c5), Glance, Cinder, Placement, Neutron"
    services += ", Heat" if with_heat else ""
    print(f"cloud {cloud.name} is up: {services}")
    if real_guests:
        for host in (guests, second):
            print(f"  host {host.HOST} boots real guests in zone {host.ZONE}, by QEMU without KVM")
    print(f"  credentials in {cloud.clouds_yaml}: admin, and the projects east and west")
    print("  backfill lab cloud run -- CMD      a command in its network")
    print("  backfill lab cloud down            end it")
    return OK


def _cloud_status(cloud: CloudHandle, as_json: bool) -> int:
    status = cloud.status()
    if as_json:
        print(json.dumps(status.to_json()))
    else:
        detail = f": {status.detail}" if status.detail else ""
        print(f"cloud {status.name} is {status.phase}{detail}")
        if status.services:
            table(("SERVICE", "PID"), [(name, str(pid)) for name, pid in status.services.items()])
    return OK if status.phase == "up" else NO


def _run_in_cloud(cloud: CloudHandle, words: list[str]) -> int:
    command = words[1:] if words[:1] == ["--"] else words
    if not command:
        raise LabMisuseError("no command is given: backfill lab cloud run -- COMMAND")
    argv = cloud.command(command)
    sys.stdout.flush()
    os.execvp(argv[0], argv)  # noqa: S606 - an argument list of our own, no shell wanted
