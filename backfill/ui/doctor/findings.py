"""What `backfill doctor` may find: codes with the reason why each matters, and a finding itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from backfill.core.model.keys import Option


class Grade(StrEnum):
    """How much a finding weighs."""

    FAULT = "fault"  # something of what backfill promises cannot work
    ADVICE = "advice"  # all works, and could work better or is about to stop working
    UNKNOWN = "unknown"  # it could not be looked at


class Defect(Option):
    """Kinds of findings. `meaning`: why it matters."""

    POLICY_UNREADABLE = "policy-unreadable", "Without its policy file the daemon does not start."
    POLICY_MISTAKE = "policy-mistake", "The daemon refuses a policy file with a mistake, and does not start."
    POLICY_CONFLICT = "policy-conflict", "The daemon refuses a policy file that contradicts the cluster."
    POLICY_HINT = "policy-hint", "It works, but not as well as it could."
    NOT_ALLOWED = (
        "not-allowed",
        "Slurm takes administrative commands from root and SlurmUser alone: nodes cannot be made, drained or "
        "resumed.",
    )
    SLURM_SILENT = "slurm-silent", "Nothing is decided while Slurm does not answer."
    NOT_CONFIGLESS = "not-configless", "A guest's slurmd fetches its configuration from slurmctld, or ends."
    RETURN_TO_SERVICE = (
        "return-to-service",
        "With 0 or 1 a node that was silent stays DOWN or looks rebooted; each return then takes more calls.",
    )
    TREE_WIDTH = (
        "tree-width",
        "slurmctld lets nodes forward messages to others, and a paused one forwards nothing: they are late.",
    )
    GUEST_CGROUPS = (
        "guest-cgroups",
        "slurmd in a guest without systemd ends with cgroup_dbus_attach_to_scope, so no node ever registers.",
    )
    PARTITION_EMPTY = (
        "partition-empty",
        "Our nodes are in no partition of priorities.low, so no job gets one.",
    )
    PARTITION_CLOSED = "partition-closed", "Slurm starts no job of that partition."
    PROLOG_TIMEOUT = (
        "prolog-timeout",
        "Slurm kills the hook while it waits for the host to be clear, and requeues or fails the job.",
    )
    NO_REQUEUE = (
        "no-requeue",
        "The ladder ends by putting jobs back into the queue, and Slurm then refuses that: they are lost.",
    )
    HOST_NODE = "host-node", "Only a host whose own Slurm node is IDLE takes instances."
    CONF_DIFFERS = (
        "conf-differs",
        "Slurm's daemons and tools there work by other settings than slurmctld, and jobs fail in odd ways.",
    )
    INCLUDE_MISSING = (
        "include-missing",
        "A slurmd or tool that cannot read what its slurm.conf includes does not start.",
    )
    INCLUDE_ABSENT = (
        "include-absent",
        "slurm.conf does not include our file, so neither hooks nor node lines in it are in force.",
    )
    OTHER_CONTROLLER = (
        "other-controller",
        "A controller that takes over with other files calls no hook, or starts no job for want of one.",
    )
    HOOK_MISSING = (
        "hook-missing",
        "Without a hook a host is given back only after the high-priority job has started there.",
    )
    HOOK_BROKEN = "hook-broken", "Hosts are not given back when a job starts, or only after a timeout."
    OPTIONS = (
        "options",
        "Users have no options to ask for machines of their own by, or each of their commands complains.",
    )
    MUNGE = "munge", "Slurm's messages are not believed: no command of the daemon's works."
    MUNGE_KEY_UNREADABLE = "munge-key-unreadable", "No guest can be made: each gets the cluster's key."
    MUNGE_KEY_OTHER = (
        "munge-key-other",
        "Guests get a key that the cluster does not understand, so that no node is ever proven.",
    )
    SLURM_KEY_UNREADABLE = "slurm-key-unreadable", "No guest can be made: each gets Slurm's own key."
    OTHER_AUTH = (
        "other-auth",
        "Guests are given another kind of key than the one by which this Slurm would know them.",
    )
    SHORT_OF_TOOLS = "short-of-tools", "The daemon needs that program for every instance."
    STATE_DIR = "state-dir", "The daemon keeps its journal there and does not start without."
    STATE_DIR_FULL = (
        "state-dir-full",
        "Each step is written down before it is done: on a full disk little more than pausing goes on.",
    )
    SOCKET = "socket", "Neither hooks nor the command line reach the daemon."
    LEASE = (
        "lease",
        "A second daemon of this cluster, with a state directory of its own, would not be noticed.",
    )
    IMAGE_MISSING = "image-missing", "No guest of this image can be made."
    IMAGE_DAMAGED = "image-damaged", "A guest of this image does not boot."
    IMAGE_CHANGED = "image-changed", "Guests are made from another image than the one that was tried out."
    IMAGE_RELEASE = "image-release", "slurmctld turns away a slurmd that is newer than itself."
    IMAGE_NOT_ON_HOST = "image-not-on-host", "No guest of this image can be made on that host."
    DIRECTORY = "directory", "Disks, seeds and saved memory of instances are kept there."
    DIRECTORY_NOT_SHARED = (
        "directory-not-shared",
        "The host looks for its guests' files in another directory than the one where the daemon puts them.",
    )
    DIRECTORY_FULL = "directory-full", "An instance's memory does not fit, so that no suspend works."
    DIRECTORY_CLOSED = "directory-closed", "QEMU runs as a user who may not enter there: no guest starts."
    LINKS = (
        "links",
        "Whoever puts a link or a file there before us has us write elsewhere, or into what is theirs.",
    )
    FILES_CLOCK = "files-clock", "Files there seem to come from another time; claims and leases are dated."
    HOST_CLOCK = (
        "host-clock",
        "Guests begin with their host's clock, and munge refuses what is too old or from the future.",
    )
    HOST_SILENT = "host-silent", "No instance is made there, and none that is there is looked after."
    OTHER_MACHINE = "other-machine", "Another host than the one that is wanted would be given back."
    LIBVIRT_MISSING = "libvirt-missing", "Hosts with libvirt cannot be spoken to."
    BRIDGE = "bridge", "Guests have no network there, and do not start."
    GUEST_FILTER = "guest-filter", "The network of guests is to be closed, and there it cannot: none is made."
    NO_KVM = "no-kvm", "The policy file wants guests on the processors themselves; none starts there."
    MACHINE = "machine", "No guest with this board can be made there."
    CPU_MODEL = "cpu-model", "No guest with this processor can be made there."
    FOREIGN_GUEST = (
        "foreign-guest",
        "A machine of that name that is not ours is there; an instance of the name cannot be made beside it.",
    )
    GUESTS_SAVED = (
        "guests-saved",
        "Memory that this saves when its host goes down waits for a person; what it starts again then runs "
        "before anybody has compared its jobs with Slurm.",
    )
    ADDRESS_TAKEN = "address-taken", "Two machines with one address: neither is reached reliably."
    ADDRESS_OUTSIDE = "address-outside", "A guest cannot reach slurmctld from its address."
    CONTROLLER_SILENT = "controller-silent", "A guest's slurmd fetches its configuration there, or ends."
    LISTEN = "listen", "Hooks on the hosts do not reach the daemon."
    SALT = "salt", "Nodes are not configured, and with salt.gate never released."
    POOL_TOKEN = (
        "pool-token",
        "The pool tells nobody without a good token what waits: no pilot is sent, and nothing is booked.",
    )
    POOL_SILENT = "pool-silent", "No pilot is sent while the pool does not answer, and nothing is booked."
    CLOUD = "cloud", "No server is made there."
    GUEST = "guest", "What fails for one guest fails for every instance."


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be: about what, what was seen, what mends it.

    `mend` is a command where one does it, otherwise words.
    """

    defect: Defect
    about: str
    what: str
    mend: str
    grade: Grade = Grade.FAULT

    def to_json(self) -> dict[str, str]:
        """For --json."""
        return {
            "code": self.defect.value,
            "grade": self.grade.value,
            "about": self.about,
            "what": self.what,
            "why": self.defect.meaning,
            "mend": self.mend,
        }
