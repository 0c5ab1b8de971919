"""What the daemon needs of files on its own machine: are they there, for the user who runs this?"""

from __future__ import annotations

import errno
import os
import pwd
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from backfill.config.model import Config, LibvirtEntry, Provider

_UNIT = "backfill.service"
_STATE_FILES = ("journal.db*", "daemon.*", "audit.log")
_LAST_STEP = re.compile(r"(\.[^.]*|\[[^\]]*\])$")


def check_files(config: Config) -> list[str]:
    """Return a sentence for each file that is missing or closed to us; nothing is written.

    Images and keys only for hosts with libvirt: in a cloud they are the cloud's.
    """
    entry, others = config.libvirt, [*_state(config), *_pilots(config)]
    if entry is None or all(host.provider is not Provider.LIBVIRT for host in config.hosts):
        return others
    return [
        *others,
        *_images(config, entry),
        *_unreadable(config, "libvirt.surroundings.munge_key", entry.surroundings.munge_key),
        *_unreadable(config, "libvirt.surroundings.slurm_key", entry.surroundings.slurm_key),
        *_directories(config, entry),
    ]


def unit_user() -> str:
    """Return the user as whom systemd runs the daemon; empty: root, or there is no such unit."""
    try:
        done = subprocess.run(
            ["systemctl", "show", "--property=User", "--value", _UNIT],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def unusable(directory: Path, error: OSError) -> str:
    """Say why the daemon cannot work with its own files there, and what mends it."""
    where, why = error.filename or directory, error.strerror
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{where}: {why}; let the daemon's user have its files: chown -R {user_name()} {directory}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where}: {why}; make room there: the daemon writes down each step before it is done"
    return f"{where}: {why}; see what lies there, or name another directory as daemon.state_dir"


def foreign_files(directory: Path) -> list[str]:
    """Return the daemon's own files there that this user cannot write, such as after a start as root."""
    if not os.access(directory, os.R_OK | os.X_OK, effective_ids=True):
        return []
    files = sorted(path for own in _STATE_FILES for path in directory.glob(own))
    return [p.name for p in files if not os.access(p, os.R_OK | os.W_OK, effective_ids=True)]


def _state(config: Config) -> Iterator[str]:
    """Files that another user has left in the state directory."""
    directory = Path(config.daemon.state_dir)
    if foreign := foreign_files(directory):
        error = OSError(errno.EACCES, os.strerror(errno.EACCES), str(directory / foreign[0]))
        yield f"{_line(config, 'daemon.state_dir')}daemon.state_dir: {unusable(directory, error)}"


def user_name() -> str:
    """Return the name of this user; its number where it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _pilots(config: Config) -> Iterator[str]:
    """Check what pilots that are sent on demand need."""
    supply = config.policies.supply
    if not supply.on:
        return
    yield from _unreadable(config, "supply.script", supply.script)
    try:
        known = pwd.getpwnam(supply.user).pw_uid
    except KeyError:
        known = None
    if not known:
        why = "is root" if known == 0 else f"is {supply.user}, and this machine knows no such user"
        yield f"{_line(config, 'supply.user')}supply.user {why}; name an ordinary user of the cluster"


def _images(config: Config, entry: LibvirtEntry) -> Iterator[str]:
    for name, image in entry.images.items():
        for key in ("kernel", "initrd", "disk", "user_data"):
            yield from _unreadable(config, f"libvirt.images.{name}.{key}", getattr(image, key))


def _directories(config: Config, entry: LibvirtEntry) -> Iterator[str]:
    """Each directory of instances: the cluster's folder in it, or where that will be made."""
    hosts = [(i, host) for i, host in enumerate(config.hosts) if host.provider is Provider.LIBVIRT]
    places = {entry.directory: "libvirt.directory"}
    for index, host in hosts:
        if host.directory:
            places.setdefault(host.directory, f"hosts[{index}].directory")
    for directory, key in places.items():
        folder = Path(directory, config.policies.cluster)
        try:
            folder = folder if folder.exists() else folder.parent
            number = errno.ENOENT if not folder.exists() else 0 if folder.is_dir() else errno.ENOTDIR
        except OSError as error:
            number = error.errno or errno.EIO
        if not number and not os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
            number = errno.EACCES
        if number:
            yield _sentence(config, key, str(folder), number, "written")


def _unreadable(config: Config, key: str, path: str) -> Iterator[str]:
    if not path:
        return
    try:
        os.stat(path)
        number = 0 if os.access(path, os.R_OK, effective_ids=True) else errno.EACCES
    except OSError as error:
        number = error.errno or errno.EIO
    if number:
        yield _sentence(config, key, path, number, "read")


def _sentence(config: Config, key: str, path: str, number: int, verb: str) -> str:
    if number == errno.EACCES:
        remedy = f"let uid {os.geteuid()}, as which this runs, into it"
    elif number == errno.ENOENT:
        remedy = "write where it is, or see that its file system is mounted"
    else:
        remedy = "see what lies there"
    return f"{_line(config, key)}{key}: {path} cannot be {verb}: {os.strerror(number)}; {remedy}"


def _line(config: Config, key: str) -> str:
    """Name the line of the key, or of what it stands in."""
    spot = key
    while spot and spot not in config.lines:
        shorter = _LAST_STEP.sub("", spot)
        spot = "" if shorter == spot else shorter
    return f"line {config.lines[spot]}: " if spot else ""
