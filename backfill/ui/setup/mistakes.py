"""What an admin asks `backfill setup` for that cannot be: told by the option with which it was said."""

from __future__ import annotations

import ipaddress
import os
import pwd
import shlex
import string
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from backfill.config import ConfigError
from backfill.config.power import of_hosts, switched_off
from backfill.core.model.quantities import parse_hostlist
from backfill.drivers.slurm.conf.site import UnreadableSiteError
from backfill.drivers.slurm.hooks.install import groups_of
from backfill.ui.own_program import own_place, own_program
from backfill.ui.setup.survey import URI, HostSurvey, Survey
from backfill.ui.setup.wishes import WishError, Wishes

_FIELDS = {"name", "address"}
# Which wish an option says.
_SAID = {
    "--directory": "directory",
    "--image": "image",
    "--mount": "mounts",
    "--bridge": "bridge",
    "--low": "partition",
    "--cpu-feature": "cpu_features",
    "--user": "user",
}
# Where the policy file has what an option says.
_OPTIONS = {
    "hosts": "--hosts or --uri",
    "instances.names": "--names",
    "instances.addresses": "--addresses",
    "instances.flavour.cpus": "--cpus",
    "instances.flavour.memory_mb": "--memory-mb",
    "libvirt.bridge": "--bridge",
    "libvirt.directory": "--directory",
    "libvirt.guest_network.also": "--also",
    "libvirt.hardware.cpu_features": "--cpu-feature",
    "libvirt.surroundings.controller": "--controller",
    "libvirt.surroundings.gateway": "--gateway",
    "libvirt.surroundings.mounts": "--mount",
    "priorities.low": "--low",
}


def checked_pattern(pattern: str) -> str:
    """Return `--uri` if every host's URI can be made of it."""
    try:
        named = {name for _, name, _, _ in string.Formatter().parse(pattern) if name is not None}
    except ValueError:
        named = {""}
    _need_utf8("--uri", pattern)
    if not named <= _FIELDS:
        raise WishError(f"--uri {pattern}: in braces it has {{name}} or {{address}} only, as in {URI}")
    return pattern


def checked_conf(path: Path) -> Path:
    """Return `--slurm-conf` if it is a file. UnreadableSiteError: it is not."""
    if not path.is_file():
        raise UnreadableSiteError(f"there is no file {path}; say where slurm.conf is by --slurm-conf")
    return path


def restart_words(command: str) -> tuple[str, ...]:
    """`--restart` as the words of a command."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise WishError(f"--restart {command}: {error}; write it as in a shell") from error
    _need_utf8("--restart", command)
    if not words:
        raise WishError("--restart is empty; name the command that starts slurmctld anew")
    return words


def _need_utf8(option: str, text: str) -> None:
    """Refuse what no file of settings can hold: paths may have any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        told = f"{option} {text} is not UTF-8, as the files of settings are"
        raise WishError(f"{told}; rename it, or name another one") from None


def check_hosts(survey: Survey, names: Sequence[str]) -> None:
    """Raise WishError if `--hosts` has a name that Slurm does not know."""
    missing = [name for name in names if all(host.node.name != name for host in survey.hosts)]
    if missing:
        told = f"--hosts: Slurm has no node {', '.join(missing)} in slurm.conf"
        raise WishError(f"{told}; `sinfo -N` lists its nodes")


def check_wishes(survey: Survey, wishes: Wishes) -> None:
    """Raise WishError for the first wish that this machine and these hosts cannot fulfil."""
    for check in _CHECKS:
        check(survey, wishes)


def by_option(error: ConfigError) -> ConfigError | WishError:
    """Tell an admin what is wrong with the file that setup would write: no one has seen that file.

    The same error comes back if some of it was not said by an option.
    """
    said = []
    for problem in error.problems:
        key = problem.path.partition("[")[0]
        option = next((_OPTIONS[known] for known in _OPTIONS if known == key), "")
        if not option:
            return error
        said.append(f"{option} {problem.what}; {problem.remedy}")
    return WishError("\n".join(said))


def _texts(_: Survey, wishes: Wishes) -> None:
    """Refuse names that are not UTF-8, said by an option or suggested by this machine's mounts."""
    for option, said in _SAID.items():
        texts = getattr(wishes, said) or ()
        for text in (texts,) if isinstance(texts, str) else texts:
            _need_utf8(option, text)


def _user(_: Survey, wishes: Wishes) -> None:
    try:
        pwd.getpwnam(wishes.user)
    except KeyError:
        told = f"there is no user {wishes.user} here; create it, or name the daemon's user by --user"
        raise WishError(told) from None


def _program(_: Survey, wishes: Wishes) -> None:
    """Refuse a user who cannot begin this program: a strict umask while it was installed closes it to him."""
    user = pwd.getpwnam(wishes.user)
    if user.pw_uid == os.getuid():
        return
    groups = groups_of(user.pw_uid)
    try:
        done = subprocess.run(
            [*own_program(), "version"],
            user=user.pw_uid,
            group=groups[0],
            extra_groups=groups,
            cwd="/",
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": user.pw_dir},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        why = error.strerror or str(error)
    else:
        why = (done.stderr.strip() or f"it ended with {done.returncode}").splitlines()[-1]
        if done.returncode == 0:
            return
    place = own_place()
    told = f"--user: {wishes.user} cannot begin backfill as it is installed in {place} ({why})"
    raise WishError(f"{told}; open it to others (chmod -R go+rX {place}), and the directories above it")


def _names(_: Survey, wishes: Wishes) -> None:
    try:
        parse_hostlist(wishes.names)
    except ValueError as error:
        raise WishError(f"--names {wishes.names}: {error}; write it like vn[1-8]") from error


def _live(survey: Survey, wishes: Wishes) -> list[HostSurvey]:
    return [host for host in survey.hosts if host.node.name in wishes.hosts]


def _size(survey: Survey, wishes: Wishes) -> None:
    """Refuse a virtual node that is larger than any host: it would never be made."""
    live = _live(survey, wishes)
    cpus, memory_mb = max(host.node.cpus for host in live), max(host.node.memory_mb for host in live)
    if wishes.cpus > cpus:
        raise WishError(f"--cpus {wishes.cpus} is more than the largest host has; name at most {cpus}")
    if wishes.memory_mb > memory_mb:
        told = f"--memory-mb {wishes.memory_mb} is more than the largest host has; name at most {memory_mb}"
        raise WishError(told)


def _bridge(survey: Survey, wishes: Wishes) -> None:
    for host in _live(survey, wishes):
        bridges = host.inspection.bridges if host.inspection is not None else None
        if bridges is not None and wishes.bridge not in bridges:
            there = f"it has {', '.join(sorted(bridges))}" if bridges else "it has none"
            told = f"host {host.node.name} has no bridge {wishes.bridge}: {there}"
            raise WishError(f"{told}; name it by --bridge, or make it there with the network card in it")


def _power(survey: Survey, wishes: Wishes) -> None:
    """Refuse hosts that Slurm would switch off."""
    hosts = [host.node for host in _live(survey, wishes)]
    if off := switched_off(survey.settings, survey.site.nodes(), hosts):
        raise WishError(f"{of_hosts(off)}, or name other hosts by --hosts")


def _controllers(_: Survey, wishes: Wishes) -> None:
    """Refuse a controller that a guest would look for in itself, or nowhere."""
    for controller in wishes.controllers:
        try:
            loopback = ipaddress.ip_address(controller).is_loopback
        except ValueError:
            told = f"the controller {controller} has no address that this machine knows"
            raise WishError(f"{told}; name it by --controller") from None
        if loopback:
            told = f"the controller's address {controller} means, inside a guest, the guest itself"
            raise WishError(f"{told}; name the address at which guests reach slurmctld by --controller")


def _route(_: Survey, wishes: Wishes) -> None:
    """Refuse addresses from which guests do not reach the controllers."""
    try:
        network = ipaddress.ip_interface(wishes.addresses).network
    except ValueError:
        return  # the reader of policy files tells what is wrong with it
    for controller in wishes.controllers:
        if ipaddress.ip_address(controller) not in network and not wishes.gateway:
            told = f"the controller {controller} is not in the guests' network {network}"
            raise WishError(f"{told}; name addresses of its network by --addresses, or a route by --gateway")


_CHECKS: tuple[Callable[[Survey, Wishes], None], ...] = (
    _texts,
    _user,
    _program,
    _names,
    _size,
    _power,
    _bridge,
    _controllers,
    _route,
)
