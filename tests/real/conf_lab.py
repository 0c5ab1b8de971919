"""Labs whose slurm.conf includes the managed file, and rigs for the ways of registering there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backfill.core.model.cluster import NodeBase
from backfill.drivers.slurm.conf.files import replace_file
from backfill.drivers.slurm.conf.managed import EMPTY, Method, WantedNodes, parse, render
from backfill.drivers.slurm.conf.nodes import CloudNodes, ConfNodes
from backfill.drivers.slurm.conf.reload import Reload
from backfill.drivers.slurm.conf.transaction import ConfPlace, Slurm, Transactions
from backfill.drivers.slurm.reading.reader import SlurmReader
from backfill.lab.cluster import Lab
from backfill.lab.layout import user_ids
from backfill.lab.spec import SLURM_USER
from backfill.ports.workload import WorkloadManager
from tests.real.slurm_lab import RealRig, commands_of, manager_of, slurm_lab

# The power-saving thread usually looks every ten seconds.
_QUICK = "SlurmctldParameters=enable_configless,power_save_interval=1,power_save_min_interval=0"
RESTART = "import sys; from backfill.lab.cluster import Lab; Lab.attach(sys.argv[1]).restart('slurmctld')"


@contextmanager
def conf_lab(name: str, **options: object) -> Iterator[Lab]:
    """A lab whose slurm.conf ends with the Include of an empty managed file.

    `extra_conf` are lines of the site's before it, in which {dir} is the site's directory, where
    its programs may write as SlurmUser; `before` are files beside slurm.conf, by name; `program` is
    the text of {dir}/prolog, since newer releases do not start without the programs that they are
    to call.
    """
    extra = options.pop("extra_conf", ())
    assert isinstance(extra, tuple)
    before = options.pop("before", {})
    assert isinstance(before, dict)
    program = options.pop("program", "")
    with slurm_lab(name, extra_conf=(_QUICK,), **options) as lab:  # type: ignore[arg-type]  # as above
        replace_file(lab.slurm_conf.with_name("backfill.conf"), render(EMPTY), like=lab.slurm_conf)
        for name, text in before.items():
            lab.slurm_conf.with_name(name).write_text(text)
        home = site_directory(lab)
        home.mkdir()
        os.chown(home, *user_ids(lab.dir / "etc", SLURM_USER))
        if program:
            site = home / "prolog"
            site.write_text(str(program).format(dir=home))
            site.chmod(0o755)
        with lab.slurm_conf.open("a") as conf:
            lines = [line.format(dir=home) for line in extra]
            conf.write("\n".join([*lines, "Include backfill.conf", ""]))
        lab.restart("slurmctld")
        yield lab


def site_directory(lab: Lab) -> Path:
    """Where the site has its programs, and these their files."""
    return lab.dir / "site"


def transactions_of(
    lab: Lab, timeout_s: float = 10.0, at: Callable[[str], None] = lambda step: None
) -> Transactions:
    """Transactions on the lab's managed file, allowed to restart its slurmctld."""
    commands = commands_of(lab, timeout_s)
    reader = SlurmReader(commands)
    place = ConfPlace(lab.slurm_conf, lab.dir / "conf-state", health_s=90.0)
    restart = (sys.executable, "-c", RESTART, lab.spec.name)
    return Transactions(place, Slurm(commands, reader.observe, reader.settings), Reload(restart), at)


@dataclass
class ConfRig(RealRig):
    """The contract's rig for nodes that come by the managed file."""

    slurmd_options: str = ""
    method: Method = Method.CONF
    fresh_base: NodeBase = NodeBase.FUTURE

    @property
    def managed(self) -> Path:
        """The managed file."""
        return self.lab.slurm_conf.with_name("backfill.conf")

    def lines(self) -> frozenset[str]:
        """The nodes of the managed file, which must be whole."""
        return parse(self.managed.read_text()).names()

    @classmethod
    def by(cls, lab: Lab, method: Method) -> ConfRig:
        """A rig on a lab from `conf_lab`."""
        transactions = transactions_of(lab)
        nodes = (CloudNodes if method is Method.CLOUD else ConfNodes)(transactions)
        wanted = WantedNodes(method, (), "/bin/true", 120)
        transactions.apply(lambda now: wanted.change(now, transactions.site()))
        manager: WorkloadManager = manager_of(lab, registration=nodes)
        rig = cls.of(lab, manager)
        assert isinstance(rig, ConfRig)
        rig.method = method
        if method is Method.CLOUD:
            rig.fresh_base = NodeBase.DOWN
        return rig
