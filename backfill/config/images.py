"""One master image of the catalogue as the policy file, or a file of its own, describes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from backfill.core.model.keys import about, key
from backfill.core.policies.cloning import Choice
from backfill.core.policies.environments import ImageRule


@dataclass(frozen=True, slots=True)
class ImageEntry:
    """A guest image for direct kernel boot; the files are the same on every host. A running daemon
    adopts changes to everything except these files, and `own_root_mb`.
    """

    kernel: str = field(metadata=about("The kernel, booted without a boot loader.", form="path"))
    initrd: str = field(metadata=about("Its initial RAM disk.", form="path"))
    disk: str = field(
        metadata=about("The disk; never written, because every instance has an overlay over it.", form="path")
    )
    cmdline: str = field(metadata=about("The kernel's command line."))
    disk_format: str = key("raw", "The disk's format, as qemu-img names it.")
    sha256: str = key("", "SHA-256 of the disk, which `backfill images check` compares; empty: not compared.")
    user_data: str = key(
        "",
        "A file on the daemon's machine for the guest's cloud-init (NoCloud), of at most 32 KB.",
        form="path",
    )
    own_root_mb: int = key(
        0, "How many MB a root file system of a user's own may have, in which jobs there run; 0: none may."
    )
    environment: str = key(
        "",
        "The feature by which jobs ask for it, as in sbatch --constraint; empty: none.",
        form="name",
        compare=False,
    )
    os_family: str = key(
        "", "Another feature of its nodes, which other images may share.", form="name", compare=False
    )
    users: tuple[str, ...] = key(
        (), "Who may ask for the environment; with neither users nor accounts everybody may.", compare=False
    )
    accounts: tuple[str, ...] = key((), "Accounts whose members may.", compare=False)
    names: tuple[str, ...] = key(
        (),
        "Which of instances.names, and with them addresses, are reserved for it; empty: "
        "those not reserved for another image.",
        form="hostlist",
        compare=False,
    )
    most_cpus: int = key(0, "CPUs that its instances may have together; 0: no limit.", compare=False)
    most_memory_mb: int = key(0, "The same of their memory.", compare=False)
    method: Choice | None = key(
        None, "How its instances are cloned; null: as cloning.method says.", compare=False
    )
    creates_per_min: int = key(
        0, "How many may begin within a minute; 0: as cloning.per_min_per_image says.", compare=False
    )
    warm_parents: int = key(
        0,
        "Parents of instant clones that every host keeps ready for it, 0 or 1: all clones share one.",
        least=0,
        most=1,
        compare=False,
    )

    def rule(self, name: str) -> ImageRule:
        """Return the part of it that the planner decides by."""
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

    images: dict[str, ImageEntry] = field(metadata=about("Guest images by name."))
