"""One master image of the catalogue as the policy file, or a file of its own, describes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from backfill.core.policies.cloning import Choice
from backfill.core.policies.environments import ImageRule


@dataclass(frozen=True, slots=True)
class ImageEntry:
    """A guest image for direct kernel boot; the files are the same on every host.

    What the planner decides by is no part of it when two are compared: a running daemon takes that
    over.
    """

    # The kernel that is booted, without a boot loader.
    kernel: str = field(metadata={"form": "path"})
    # Its initial RAM disk.
    initrd: str = field(metadata={"form": "path"})
    # Never written: every instance has an overlay over it.
    disk: str = field(metadata={"form": "path"})
    # The kernel's command line.
    cmdline: str
    # As qemu-img names it.
    disk_format: str = "raw"
    # SHA-256 of the disk, which `backfill images check` compares; empty: not compared.
    sha256: str = ""
    # A file on the daemon's machine for the guest's cloud-init (NoCloud), of at most 32 KB.
    user_data: str = field(default="", metadata={"form": "path"})
    # The feature by which jobs ask for it, as in sbatch --constraint; empty: none.
    environment: str = field(default="", metadata={"form": "name"}, compare=False)
    # Another feature of its nodes, which other images may share.
    os_family: str = field(default="", metadata={"form": "name"}, compare=False)
    # Who may ask for the environment; with neither users nor accounts everybody may.
    users: tuple[str, ...] = field(default=(), compare=False)
    # Accounts whose members may.
    accounts: tuple[str, ...] = field(default=(), compare=False)
    # Which of instances.names, and with them which addresses, are kept for it; empty: those that
    # are kept for no other image.
    names: tuple[str, ...] = field(default=(), compare=False)
    # CPUs that its instances may have together; 0: as many as there are.
    most_cpus: int = field(default=0, compare=False)
    # The same of their memory.
    most_memory_mb: int = field(default=0, compare=False)
    # How its instances are cloned; null: as cloning.method says.
    method: Choice | None = field(default=None, compare=False)
    # At most so many are begun within a minute; 0: as cloning.per_min_per_image says.
    creates_per_min: int = field(default=0, compare=False)
    # Parents of instant clones that every host keeps ready for it, 0 or 1: all clones share one.
    warm_parents: int = field(default=0, compare=False, metadata={"least": 0, "most": 1})

    def rule(self, name: str) -> ImageRule:
        """What the planner is to know of it."""
        method = self.method.value if self.method is not None else ""
        return ImageRule(
            name,
            self.os_family,
            self.names,
            self.most_cpus,
            self.most_memory_mb,
            method,
            self.creates_per_min,
            self.warm_parents,
        )


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The file that libvirt.catalogue names."""

    # Guest images by name.
    images: dict[str, ImageEntry]
