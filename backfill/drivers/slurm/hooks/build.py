"""Builds the hook that Slurm calls when a job starts and when it has ended."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from backfill.drivers.slurm.conf.files import make_directory

_SOURCES = Path(__file__).parent
HOOK_SOURCE = _SOURCES / "hook.c"
_LONGEST_SOCKET_PATH = 107  # sun_path, with its final zero


class HookError(ValueError):
    """The hook cannot be built so; the message is one sentence."""


def build_hook(
    dest: Path,
    endpoint: str,
    timeout_ms: int,
    log: Path | None,
    compiler: str | None = "gcc",
    follows: str = "",
) -> Path:
    """Write the hook for this endpoint to `dest` and return `dest`.

    `endpoint` is `unix:/path` or `tcp:IP:PORT`; the hook gives up after `timeout_ms` and writes
    what went wrong to `log`. With the compiler it is a static executable that starts in under a
    millisecond; without one (None, or not installed, or failing) it is the same in Python. It
    replaces an existing file at once, so a hook that Slurm starts in this moment is never half
    written. `follows` is a program that then runs in the hook's place, with the environment and the
    arguments that Slurm gave, and whose exit status is the hook's. Raises HookError for an
    endpoint, a timeout or a path that cannot work.
    """
    _check_endpoint(endpoint)
    if not 10 <= timeout_ms <= 600_000:
        raise HookError(f"hook timeout {timeout_ms} ms: use 10 to 600000")
    log_path = str(log) if log is not None else ""
    if log is not None and (not log.is_absolute() or not _plain(log_path)):
        raise HookError(f"hook log {log_path!r}: use an absolute path of plain characters")
    if follows and (not follows.startswith("/") or not _plain(follows)):
        raise HookError(f"the site's hook {follows!r}: use an absolute path of plain characters")
    values: dict[str, str | int] = {
        "ENDPOINT": endpoint,
        "TIMEOUT_MS": timeout_ms,
        "LOG_PATH": log_path,
        "NEXT": follows,
    }
    make_directory(dest.parent)
    with tempfile.TemporaryDirectory(dir=dest.parent, prefix=".hook-") as scratch:
        made = Path(scratch, "hook")
        if not _compile(compiler, made, values):
            made.write_text(python_hook(values))
        made.chmod(0o755)
        os.replace(made, dest)
    return dest


def build_guest_hook(dest: Path, told: str, log: str) -> None:
    """Compile to `dest` the hook of a guest image, for every cluster: it asks whom its file `told`
    names, and nobody where there is none. HookError: it cannot be compiled."""
    none: dict[str, str | int] = {"TIMEOUT_MS": 0, "NEXT": ""}
    if not _compile("gcc", dest, {**none, "ENDPOINT": f"file:{told}", "LOG_PATH": log}):
        raise HookError(f"{dest} cannot be compiled: it needs gcc")


def python_hook(values: Mapping[str, str | int]) -> str:
    """Write the text of the Python hook with these settings in it."""
    text = (_SOURCES / "hook.py").read_text()
    for name, value in values.items():
        # A checked value has no backslash, so it is safe as a replacement.
        text = re.sub(rf"^{name} = .*$", f"{name} = {json.dumps(value)}", text, flags=re.MULTILINE)
    return text


def _compile(compiler: str | None, made: Path, values: Mapping[str, str | int]) -> bool:
    if compiler is None or shutil.which(compiler) is None:
        return False
    defines = [f"-D{name}={json.dumps(value)}" for name, value in values.items()]
    argv = [compiler, "-static", "-Os", "-s", "-o", str(made), *defines, str(HOOK_SOURCE)]
    try:
        return subprocess.run(argv, capture_output=True, check=False, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _check_endpoint(endpoint: str) -> None:
    kind, _, place = endpoint.partition(":")
    if kind == "unix":
        if not place.startswith("/") or not _plain(place) or len(place) > _LONGEST_SOCKET_PATH:
            raise HookError(
                f"hook endpoint {endpoint!r}: use unix: and an absolute path of plain characters, "
                f"{_LONGEST_SOCKET_PATH} at most"
            )
    elif kind == "tcp":
        host, _, port = place.rpartition(":")
        if not _is_ipv4(host) or not port.isdigit() or not 0 < int(port) < 65536:
            raise HookError(f"hook endpoint {endpoint!r}: use tcp: and an IPv4 address and port")
    else:
        raise HookError(f"hook endpoint {endpoint!r}: use unix:/path or tcp:IP:PORT")


def _plain(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_./@+=:-]+", text) is not None


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True
