"""From a checked policy file to the parts that change Slurm's configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from backfill.config.model import Config, HookPlaceKind, Provider, ReadKind, RegistrationKind
from backfill.core.model.cluster import SlurmSettings, SlurmVersion
from backfill.core.policies.environments import Environments, whose
from backfill.drivers.slurm.access import Access
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.conf.managed import FEATURES_NODE, Method, WantedNodes
from backfill.drivers.slurm.conf.nodes import CloudNodes, ConfNodes
from backfill.drivers.slurm.conf.reload import Reload
from backfill.drivers.slurm.conf.transaction import ConfPlace, RolledBackError, Slurm, Transactions
from backfill.drivers.slurm.driver import SlurmManager
from backfill.drivers.slurm.hooks.install import POWER, HookPlan, Hooks, HookStatus, programs
from backfill.drivers.slurm.hooks.machines_lua import MachineGate, NamedGate
from backfill.drivers.slurm.hooks.submit_lua import Gate
from backfill.drivers.slurm.reading.json_path import JsonPath
from backfill.drivers.slurm.reading.paths import Failover, ReadPath
from backfill.drivers.slurm.reading.pyslurm_path import PyslurmPath
from backfill.drivers.slurm.reading.reader import SlurmReader
from backfill.drivers.slurm.reading.rest_path import RestPath
from backfill.drivers.slurm.reading.text_path import TextPath
from backfill.drivers.slurm.registration import ROOM_NODE, Dynamic, Registration
from backfill.drivers.slurm.spank.install import Spank
from backfill.ports.workload import NodeSpec

# Releases that refuse jobs of a partition without any node: of those between, 24.11 was measured
# to do so, 22.05 and 26.05 were measured to let them wait, and users of 25.11 say the same.
_AFTER, _BEFORE = (22, 5), (25, 11)


def commands(config: Config) -> SlurmTools:
    """Slurm's tools."""
    return SlurmTools(
        conf=Path(config.slurm.conf),
        bin_dir=Path(config.slurm.bin_dir) if config.slurm.bin_dir else None,
        timeout_s=config.slurm.timeout_s,
    )


def transactions(config: Config) -> Transactions:
    """Make what changes the managed file."""
    tools = commands(config)
    reader = SlurmReader(tools)
    state_dir = Path(config.daemon.state_dir) / "slurm-conf"
    place = ConfPlace(Path(config.slurm.conf), state_dir, config.slurm.include, config.slurm.health_s)
    slurm = Slurm(tools, reader.observe, reader.settings)
    return Transactions(place, slurm, Reload(config.slurm.restart))


def read_path(config: Config) -> ReadPath:
    """Make the way of reading that the file chooses, and the way to turn to when it fails."""
    tools = commands(config)
    text = TextPath(tools)
    match config.slurm.read:
        case ReadKind.AUTO:
            # Measured at all sizes (docs/performance.md): nothing reads faster than text.
            return Failover([text, JsonPath(tools)])
        case ReadKind.TEXT:
            return text
        case ReadKind.JSON:
            return Failover([JsonPath(tools), text])
        case ReadKind.REST:
            return Failover([RestPath(tools, Path(config.slurm.rest_socket)), text])
        case ReadKind.PYSLURM:
            return Failover([PyslurmPath(tools, config.slurm.pyslurm_python), text])


def registration(config: Config) -> Registration:
    """Make the way of registering that the file chooses."""
    match config.slurm.registration:
        case RegistrationKind.DYNAMIC:
            return Dynamic()
        case RegistrationKind.CONF:
            return ConfNodes(transactions(config))
        case RegistrationKind.CLOUD:
            return CloudNodes(transactions(config))


def settle(config: Config, manager: SlurmManager) -> list[str]:
    """Finish what a crash has interrupted, and close what jobs must not reach; what was done."""
    told = []
    change = transactions(config)
    try:
        told.append(change.recover())
    except RolledBackError as error:
        told.append(str(error))
    told += make_room(config, manager)
    nodes = registration(config)
    if isinstance(nodes, CloudNodes):
        closed = nodes.secure(manager, change.slurm.look().nodes)
        told += [f"{name}: was open to jobs although it is not in use; put away" for name in closed]
    return [sentence for sentence in told if sentence]


def make_room(config: Config, manager: SlurmManager) -> list[str]:
    """Let Slurm take jobs for which there is no node yet; what could not be done."""
    nodes = registration(config)
    if isinstance(nodes, Dynamic) and _AFTER < manager.settings().version.major < _BEFORE:
        return nodes.announce(manager, announced(config))
    return []


def slurmd_options(config: Config, options: str) -> str:
    """Take out the option by which a node is added: one that has a line must not register so."""
    if config.slurm.registration is RegistrationKind.DYNAMIC:
        return options
    return " ".join(word for word in options.split() if word != "-Z")


def wanted(config: Config) -> WantedNodes:
    """Return the contents that the managed file should have."""
    template = config.policies.instances
    specs = [
        NodeSpec(
            name,
            address.split("/")[0],
            template.flavour.cpus,
            template.flavour.node_memory_mb,
            _features(config, name),
        )
        for name, address in zip(template.names, template.addresses, strict=True)
    ]
    return WantedNodes(
        Method(config.slurm.registration.value),
        specs,
        str(Path(config.slurm.hooks.directory) / POWER),
        config.policies.scale.boot_within_s,
        _shape(config, FEATURES_NODE) if _asked_for(config) else None,
    )


def announced(config: Config) -> list[NodeSpec]:
    """As many nodes of the shape of ours as one job may have."""
    most = config.policies.demand.max_nodes
    return [_shape(config, f"{ROOM_NODE}-{i}") for i in range(1, most + 1)]


def _shape(config: Config, name: str) -> NodeSpec:
    """Like our nodes, with every feature that one of them may have."""
    template = config.policies.instances
    features = tuple(dict.fromkeys([*template.features, *_asked_for(config)]))
    flavour = template.flavour
    return NodeSpec(name, "127.0.0.1", flavour.cpus, flavour.node_memory_mb, features)


def _asked_for(config: Config) -> tuple[str, ...]:
    """Features that jobs may ask for, and which not all of our nodes have."""
    policies = config.policies
    return (*policies.environments.features, *policies.devices.features, *policies.own_machines.features)


def _features(config: Config, name: str) -> tuple[str, ...]:
    """Those of a node of this name, which may be kept for one image."""
    policies = config.policies
    image = policies.environments.image_for(name) or policies.instances.image
    own = policies.environments.features_of(image)
    offered = policies.devices.offered(())  # what few of them have is told to Slurm when they come
    return tuple(dict.fromkeys([*policies.instances.features, *own, *offered]))


def hooks(config: Config) -> Hooks:
    """Return the part that installs and removes hooks."""
    return Hooks(transactions(config), Path(config.slurm.hooks.directory))


def hook_status(config: Config, version: SlurmVersion | None) -> HookStatus:
    """Return how the installed hooks are; `version` is Slurm's, None where it does not answer."""
    installed = hooks(config)
    status = installed.status()
    if version is None or not status.installed:
        return status
    stale = installed.stale(hook_plan(config), version)
    return replace(status, problems=(*status.problems, stale)) if stale else status


def hook_plan(config: Config) -> HookPlan:
    """Return the hooks as the file wants them. ValueError: a hook on the hosts needs daemon.listen."""
    entry, local = config.slurm.hooks, f"unix:{config.daemon.socket}"
    endpoint = local
    if entry.place is HookPlaceKind.HOST:
        if not config.daemon.listen:
            raise ValueError(
                f"{config.source}: slurm.hooks.place is host, and daemon.listen is not set; set it "
                "to the address where the hosts' hooks reach the daemon"
            )
        endpoint = f"tcp:{config.daemon.listen}"
    return HookPlan(
        place=entry.place.value,
        directory=Path(entry.directory),
        endpoint=endpoint,
        timeout_ms=round((config.policies.answer_within_s + entry.margin_s) * 1000),
        log=Path(entry.log),
        arrival_endpoint=local if entry.arrival else "",
        gates=gates(config.policies.environments),
        rooms=rooms(config.policies.environments),
        machines=machine_gate(config),
    )


def machine_gate(config: Config) -> MachineGate | None:
    """How jobs ask for machines of their own; None where they may not."""
    rule, priorities = config.policies.own_machines, config.policies.priorities
    if not rule.enabled:
        return None
    low, low_qos, high = priorities.low, priorities.low_qos, priorities.high
    return MachineGate(
        rule.constraint,
        rule.partitions,
        low,
        low_qos,
        high,
        rule.inside,
        networks=tuple(NamedGate(n.name, n.users, n.accounts, ", ".join(n.allowed)) for n in rule.networks),
        images=_image_gates(config.policies.environments),
        clouds=all(host.provider is Provider.OPENSTACK for host in config.hosts),
        most_disk_gb=rule.largest_disk_gb(config.policies.instances.flavour),
    )


def _image_gates(environments: Environments) -> tuple[NamedGate, ...]:
    """Who may ask for which image by a word, of those that are not for everybody."""
    owners = ((word, environments.owners(image)) for word, image in sorted(environments.words.items()))
    return tuple(NamedGate(word, *theirs, whose(*theirs)) for word, theirs in owners if any(theirs))


def spank(config: Config, directory: Path) -> Spank:
    """Return the part that installs and removes the options of sbatch, salloc and srun."""
    conf = Path(config.slurm.conf)
    named = transactions(config).site().value("PlugStackConfig")
    return Spank(commands(config), Path(named) if named else conf.with_name("plugstack.conf"), directory)


def no_ops(config: Config, named: tuple[str, ...]) -> tuple[str, ...]:
    """Programs that slurm.conf names and guests lack: those `named`, and our hooks on the hosts."""
    entry = config.slurm.hooks
    if entry.place is not HookPlaceKind.HOST:
        return named
    ours = (str(Path(entry.directory, name)) for name in programs(entry.place.value))
    return tuple(dict.fromkeys([*named, *ours]))


def without_no_ops(config: Config, settings: SlurmSettings) -> list[str]:
    """Return our nodes that are up, and were perhaps made before our hooks on the hosts were wanted.

    None where Slurm has these hooks already: who came up with them has what stands for them.
    """
    ours = no_ops(config, ())
    if not ours or ours[0] in settings.prolog.split(","):
        return []
    seen = SlurmReader(commands(config)).read_nodes(config.policies.instances.names)
    return sorted(name for name, node in seen.items() if node.slurmd_start_s)


def guests_ask(config: Config) -> str:
    """Whom guests ask before a job begins, and how long; empty where nobody has to be asked.

    A hook in slurmctld holds the job for all of its nodes; one on the hosts knows nothing of ours.
    """
    on_hosts = config.slurm.hooks.place is HookPlaceKind.HOST
    if not on_hosts or not config.daemon.listen or not config.policies.devices.entries:
        return ""
    plan = hook_plan(config)
    return f"{plan.endpoint} {plan.timeout_ms}"


def gates(environments: Environments) -> tuple[Gate, ...]:
    """Return the rules that refuse jobs at submission."""
    return tuple(
        Gate(entry.name, entry.users, entry.accounts, environments.whose(entry))
        for entry in environments.entries
        if entry.users or entry.accounts
    )


def access(environments: Environments) -> tuple[Access, ...]:
    """Who may have nodes of an image at all, where not everybody may."""
    return tuple(
        Access(entries[0].name, *environments.members(image))
        for image in environments.private
        if (entries := [e for e in environments.entries if e.image == image])
    )


def rooms(environments: Environments) -> tuple[Gate, ...]:
    """Return what is refused at submission to users who ask for a node by its name."""
    return tuple(
        Gate(kept.feature, kept.users, kept.accounts, whose(kept.users, kept.accounts))
        for kept in access(environments)
    )
