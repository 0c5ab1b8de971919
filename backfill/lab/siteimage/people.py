"""The people of a site in a guest: users and groups as its controller knows them, without passwords.

Numbers have to be the cluster's: Slurm starts a job by its owner's, and believes its own user by his.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from backfill.lab.spec import SLURM_USER, LabError

# Below are users of the system, which every machine has by its packages.
LEAST = 1000
# So are those that packages and systemd take from here: libvirt's QEMU, users of one service, nobody.
_OF_PACKAGES = range(60000, 65536)
_USERS_GROUP = 100  # Debian's and others' group "users", which opens nothing
_LOCKED = "{}:*:19000:0:99999:7:::"


@dataclass(frozen=True, slots=True)
class SitePeople:
    """Texts of passwd, group and shadow; `renumbered`: old and new numbers of users and of groups."""

    passwd: str
    group: str
    shadow: str
    renumbered_users: Mapping[int, int]
    renumbered_groups: Mapping[int, int]


def merged(own: Mapping[str, str], theirs: Mapping[str, str]) -> SitePeople:
    """Add the site's people to the image's users, and give Slurm's user the site's numbers.

    Both hold the texts of `passwd` and `group`, `own` that of `shadow` too. No password comes along,
    and nobody gets into a group of the system. Raises LabError for people who cannot be taken over.
    """
    passwd, group = _entries(own["passwd"], 7, "the image"), _entries(own["group"], 4, "the image")
    people = _entries(theirs["passwd"], 7, "the site")
    groups = _entries(theirs["group"], 4, "the site")
    users, gids = _as_at_the_site(passwd, group, people, groups)
    added = [words for words in people.values() if _is_person(words)]
    own_gids = {words[2] for words in group.values()}
    for words in added:
        _refuse_clash(words, passwd)
        if int(words[3]) < LEAST and words[3] in own_gids and int(words[3]) != _USERS_GROUP:
            raise LabError(
                f"{words[0]} has group {words[3]} of the system as his own, which would open files of the "
                "system's to him in the guests; give him another in the site's passwd"
            )
    primary = {words[3] for words in added}
    more = [
        words
        for name, words in groups.items()
        if name not in group and (_is_person(words) or (words[2] in primary and words[2] not in own_gids))
    ]
    return SitePeople(
        passwd=_text([*passwd.values(), *([w[0], "x", *w[2:]] for w in added)]),
        group=_text([*group.values(), *more]),
        shadow=own["shadow"] + "".join(_LOCKED.format(words[0]) + "\n" for words in added),
        renumbered_users=users,
        renumbered_groups=gids,
    )


def _entries(text: str, fields: int, whose: str) -> dict[str, list[str]]:
    """Lines by name; those of other name services (+ and -) are no entries."""
    found: dict[str, list[str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith(("#", "+", "-")):
            continue
        words = line.split(":")
        if len(words) != fields or not words[0] or not words[2].isdecimal():
            kind = "passwd" if fields == 7 else "group"
            raise LabError(f"line {number} of {whose}'s {kind} is none: '{line}'; correct it")
        found.setdefault(words[0], words)
    return found


def _is_person(words: list[str]) -> bool:
    return int(words[2]) >= LEAST and int(words[2]) not in _OF_PACKAGES and words[0] != SLURM_USER


def _refuse_clash(words: list[str], passwd: Mapping[str, list[str]]) -> None:
    mine = passwd.get(words[0])
    if mine is not None:
        raise LabError(
            f"{words[0]} has number {words[2]} at the site and is a user of the system with {mine[2]} in the "
            "image; rename one of them"
        )


def _as_at_the_site(
    passwd: dict[str, list[str]],
    group: dict[str, list[str]],
    people: Mapping[str, list[str]],
    groups: Mapping[str, list[str]],
) -> tuple[dict[int, int], dict[int, int]]:
    """Give Slurm's user the numbers that the site has for him; which of the image's changed to what."""
    theirs = people.get(SLURM_USER)
    if theirs is None or SLURM_USER not in passwd:
        return {}, {}
    mine = passwd[SLURM_USER]
    users = _renumber(mine, theirs[2], passwd.values(), "user")
    gids: dict[int, int] = {}
    if SLURM_USER in groups and SLURM_USER in group and mine[3] == group[SLURM_USER][2]:
        gids = _renumber(group[SLURM_USER], groups[SLURM_USER][2], group.values(), "group")
    mine[3] = group[SLURM_USER][2] if gids else mine[3]
    return users, gids


def _renumber(words: list[str], number: str, others: Iterable[list[str]], kind: str) -> dict[int, int]:
    if words[2] == number:
        return {}
    taken = next((other[0] for other in others if other[2] == number), "")
    if taken:
        raise LabError(
            f"{kind} {words[0]} has number {number} at the site, which is {taken}'s in the image; "
            f"leave {taken}'s package out"
        )
    changed = {int(words[2]): int(number)}
    words[2] = number
    return changed


def _text(entries: Iterable[list[str]]) -> str:
    return "".join(":".join(words) + "\n" for words in entries)
