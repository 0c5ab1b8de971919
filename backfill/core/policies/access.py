"""Access: who may read and act from outside of the daemon's machine, by user and group."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from backfill.core.model.keys import Option, key

EVERYBODY = "*"


class Role(Option):
    """What somebody may do; each may do what the ones before it may."""

    READER = "reader", "reads everything"
    OPERATOR = "operator", "evicts, reclaims, retries, orders fleets and checkpoints"
    ADMIN = "admin", "takes the policy file over"

    def covers(self, other: Role) -> bool:
        """Return True if whoever has this role may do what takes the other one."""
        order = list(Role)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class People:
    """Users and groups, as the daemon's machine knows them (NSS)."""

    users: tuple[str, ...] = key((), 'Names of users; "*" stands for every user of the cluster.')
    groups: tuple[str, ...] = key((), "Names of groups.")

    def include(self, user: str, groups: Collection[str]) -> bool:
        """Return True if the user, who is in these groups, is one of them."""
        named = user in self.users or EVERYBODY in self.users
        return named or any(group in self.groups for group in groups)


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles. root and the daemon's own user, on its machine, may do everything."""

    reader: People | None = key(None, "Who may read everything.")
    operator: People | None = key(None, "Who may also evict, reclaim, retry, order fleets and checkpoints.")
    admin: People | None = key(None, "Who may also have the daemon adopt the policy file.")

    def role(self, user: str, groups: Collection[str]) -> Role | None:
        """Return the highest role of a user; None: they have none."""
        for role in reversed(Role):
            people: People | None = getattr(self, role.value)
            if people is not None and people.include(user, groups):
                return role
        return None
