"""Puts the SPANK plugin into a Slurm that may have plugins of its own, and takes it out again.

plugstack.conf, which a configless slurmctld gives to everybody, only gets an `include` of a pattern below
a directory of the machine: where that is missing, as in guests, nothing is included and nothing is said.
The line that names the plugin stands beside it there.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from backfill.core.model.cluster import SlurmVersion
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.conf.files import behind, make_directory, read_or_empty, remove_file, replace_file
from backfill.drivers.slurm.spank.build import SpankError, build_plugin, release_of
from backfill.ports.errors import BadOutputError, DriverError, RefusedError

PLUGIN, LINES = "backfill_vm.so", "vm.conf"
DIRECTORY = Path("/usr/local/lib/backfill/spank")
_MARK = "# Made by `backfill slurm spank install`; `remove` takes these two lines away."
_BUILT = "# Built for Slurm "
_CREATED = "# There was no such file before."
_OPTION = "--vm-per-node"


@dataclass(frozen=True, slots=True)
class SpankStatus:
    """Where the plugin stands. `release`: for which it was built; `problems`: one sentence each.

    `offered`: sbatch has the options, wherever its plugin lies.
    """

    installed: bool
    release: str = ""
    plugstack: str = ""
    problems: tuple[str, ...] = ()
    offered: bool = False

    def to_json(self) -> dict[str, object]:
        """For --json."""
        return {
            "installed": self.installed,
            "release": self.release,
            "plugstack": self.plugstack,
            "problems": list(self.problems),
            "offered": self.offered,
        }


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold a lock on the directory itself: nothing is left there."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class Spank:
    """The plugin on this machine, and its line in plugstack.conf. Every call can be repeated."""

    def __init__(self, tools: SlurmTools, plugstack: Path, directory: Path = DIRECTORY) -> None:
        self._tools = tools
        self._plugstack = behind(plugstack)
        self._directory = directory

    @property
    def include(self) -> str:
        """Return the line that every plugstack.conf of the cluster needs."""
        return f"include {self._directory}/*.conf"

    def install(self) -> Sequence[str]:
        """Build, write and try it; what was done. RefusedError: it is as it was before."""
        release = self.release()
        known = {path: path.read_bytes() for path in self._files() if path.exists()}
        self._write(self._directory, release)
        with _alone(self._plugstack.parent):
            before = read_or_empty(self._plugstack)
            there = self._plugstack.exists()
            after = before if self.include in before.split("\n") else self._with_include(before, there)
            if after != before:
                replace_file(self._plugstack, after)
            if not there:
                self._plugstack.chmod(0o644)
            complaint = self._complaint()
            if complaint:
                self._put_back(before, there, known)
                raise RefusedError(str(self._plugstack), f"{complaint}; all is as it was before")
        line = f"{self._plugstack} has the line: {self.include}"
        return (f"{self._directory / PLUGIN} is built for Slurm {release}", line)

    def remove(self) -> Sequence[str]:
        """Remove the plugin the other way round: nothing is taken away that plugstack.conf still names."""
        with _alone(self._plugstack.parent):
            before = read_or_empty(self._plugstack)
            after = self._without_include(before)
            if _CREATED in before and not after.strip():
                remove_file(self._plugstack)
            elif after != before:
                replace_file(self._plugstack, after)
        for path in self._files():
            if path.exists():
                remove_file(path)
        if self._directory.is_dir() and not any(self._directory.iterdir()):
            self._directory.rmdir()
        return ("no plugin of ours is left here",)

    def status(self) -> SpankStatus:
        """Look at the files, and ask sbatch for its options."""
        text = read_or_empty(self._directory / LINES)
        built = re.search(rf"^{_BUILT}(\d\d\.\d\d\.\d+)$", text, re.MULTILINE)
        included = self.include in read_or_empty(self._plugstack).split("\n")
        offered = not self._complaint()
        if not built and not included:
            return SpankStatus(False, plugstack=str(self._plugstack), offered=offered)
        release = built[1] if built else ""
        problems = tuple(self._problems(release, included))
        return SpankStatus(True, release, str(self._plugstack), problems, offered)

    def package(self, archive: Path, release: SlurmVersion | None = None) -> Sequence[str]:
        """Write an archive to be unpacked at / of a login node; of its release, if not of ours."""
        scratch = self._directory.with_name(f".{self._directory.name}-package")
        wanted = release or self.release()
        self._write(scratch, wanted)
        try:
            with tarfile.open(archive, "w:gz") as out:
                for name in (PLUGIN, LINES):
                    data = (scratch / name).read_bytes()
                    entry = tarfile.TarInfo(str(self._directory / name).lstrip("/"))
                    entry.size, entry.mode = len(data), 0o644
                    out.addfile(entry, io.BytesIO(data))
        finally:
            for name in (PLUGIN, LINES):
                (scratch / name).unlink(missing_ok=True)
            scratch.rmdir()
        return (
            f"{archive} is for Slurm {wanted}; unpack it on each machine where users submit: "
            f"tar -C / -xzf {archive.name}",
            f"a machine with a plugstack.conf of its own needs this line there: {self.include}",
        )

    def release(self) -> SlurmVersion:
        """Return the release of the tools here: they load the plugin. BadOutputError: they tell none."""
        said = self._tools.run(["sbatch", "--version"])
        try:
            return release_of(said)
        except SpankError as error:
            raise BadOutputError(
                str((self._tools.bin_dir or Path()) / "sbatch"),
                f"its --version {error}",
                "see what is installed there, and slurm.bin_dir in the policy file",
            ) from error

    # --- inside --------------------------------------------------------------------------------

    def _files(self) -> tuple[Path, ...]:
        return (self._directory / LINES, self._directory / PLUGIN)

    def _write(self, directory: Path, release: SlurmVersion) -> None:
        make_directory(directory)
        directory.chmod(0o755)  # whatever our umask: every user's sbatch reads it
        try:
            build_plugin(directory / PLUGIN, release)
        except SpankError as error:
            if not any(directory.iterdir()):
                directory.rmdir()
            raise RefusedError(str(directory / PLUGIN), str(error)) from error
        lines = f"{_BUILT}{release}\noptional {self._directory / PLUGIN}\n"
        replace_file(directory / LINES, lines)
        (directory / LINES).chmod(0o644)

    def _with_include(self, before: str, there: bool) -> str:
        created = () if there else (_CREATED,)
        ended = before if before.endswith("\n") or not before else f"{before}\n"
        return ended + "\n".join([*created, _MARK, self.include, ""])

    def _without_include(self, before: str) -> str:
        ours = {_MARK, self.include, _CREATED}
        return "\n".join(line for line in before.split("\n") if line not in ours)

    def _put_back(self, before: str, there: bool, known: dict[Path, bytes]) -> None:
        if there:
            replace_file(self._plugstack, before)
        else:
            remove_file(self._plugstack)
        for path in self._files():
            if path in known:
                replace_file(path, known[path])
            else:
                remove_file(path)

    def _complaint(self) -> str:
        """Return why sbatch does not offer the options; empty if it does."""
        try:
            shown = self._tools.run(["sbatch", "--help"])
        except DriverError as error:
            return f"sbatch does not work with the plugin ({error})"
        if _OPTION in shown:
            return ""
        return f"sbatch does not take the plugin: its --help has no {_OPTION}"

    def _problems(self, release: str, included: bool) -> Sequence[str]:
        problems = []
        if not included:
            problems.append(f"{self._plugstack} does not have the line: {self.include}")
        problems += [f"there is no {path}" for path in self._files() if not path.exists()]
        tools = self.release()
        if release and release_of(release).major != tools.major:
            problems.append(
                f"the plugin is built for Slurm {release} and the tools here are {tools}: each command "
                "of users complains about it; run `backfill slurm spank install`"
            )
        elif not problems and (said := self._complaint()):
            problems.append(said)
        return problems
