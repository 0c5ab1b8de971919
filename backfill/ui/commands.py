"""The table of all commands; a command's module is imported only when it is chosen."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

Run = Callable[[argparse.Namespace], int]


@dataclass(frozen=True, slots=True)
class Command:
    """One word after `backfill`. Its module has `add_arguments(parser)` and `run(args) -> int`."""

    name: str
    module: str
    help: str
    group: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's own arguments."""
        module = importlib.import_module(self.module)
        cast("Callable[[argparse.ArgumentParser], None]", module.add_arguments)(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Carry the command out; returns the exit status."""
        return cast("Run", importlib.import_module(self.module).run)(args)


_ASK, _ACT, _WORK, _HELP = "look", "act", "run and try", "help"

COMMANDS = (
    Command("status", "backfill.ui.show_status", "the cluster on one page", _ASK),
    Command("hosts", "backfill.ui.show_hosts", "machines that carry instances", _ASK),
    Command("nodes", "backfill.ui.show_nodes", "our virtual nodes, what they do and why", _ASK),
    Command("instances", "backfill.ui.show_instances", "instances on the hosts", _ASK),
    Command("explain", "backfill.ui.show_explain", "why a node, host or job is as it is", _ASK),
    Command("plan", "backfill.ui.show_plan", "what would be done now, and what not", _ASK),
    Command("events", "backfill.ui.show_events", "what was done, in order of time", _ASK),
    Command("evict", "backfill.ui.evict_command", "clear a host or node by hand", _ACT),
    Command("provision", "backfill.ui.provision_command", "run Salt's states on nodes", _ACT),
    Command("drift", "backfill.ui.drift_command", "which nodes differ from Salt's states", _ASK),
    Command("checkpoint", "backfill.ui.checkpoint_command", "saved states of jobs", _ACT),
    Command("reclaim", "backfill.ui.reclaim_command", "give a burst host's room back", _ACT),
    Command("fleet", "backfill.ui.fleet_command", "instances, all of them or none", _ACT),
    Command("retry", "backfill.ui.retry_command", "try a given-up node again", _ACT),
    Command("poke", "backfill.ui.poke_command", "make the daemon look at everything now", _ACT),
    Command("daemon", "backfill.ui.daemon_command", "run the node manager", _WORK),
    Command("slurm", "backfill.ui.slurm_command", "our part of Slurm's configuration", _WORK),
    Command("policy", "backfill.ui.policy_command", "check a policy file", _WORK),
    Command("image", "backfill.ui.image_command", "build and verify the guest image", _WORK),
    Command("images", "backfill.ui.images_command", "master images and their checksums", _WORK),
    Command("cloud", "backfill.ui.cloud_command", "a whole cluster in OpenStack", _WORK),
    Command("lab", "backfill.ui.lab_commands", "a real cluster on this machine", _WORK),
    Command("demo", "backfill.ui.demo", "watch the main job on a lab", _WORK),
    Command("replay", "backfill.ui.replay_command", "play a trace or a scenario", _WORK),
    Command("workload", "backfill.ui.workload_command", "draw a trace from a model", _WORK),
    Command("completion", "backfill.ui.completion", "completion for bash, zsh, fish", _HELP),
    Command("version", "backfill.ui.version_command", "show the version", _HELP),
)
# A scenario is replayed with other arguments than a trace.
LIVE = Command("replay", "backfill.ui.live_command", "play a scenario, --live on a real lab", _WORK)

GROUPS = tuple(dict.fromkeys(c.group for c in COMMANDS))
BY_NAME = {c.name: c for c in COMMANDS}
