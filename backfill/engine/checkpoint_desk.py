"""What people look up and order about checkpoints that are kept: by the daemon, or without one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from backfill.core.expiry import by_id, needless
from backfill.core.model.cluster import Job
from backfill.core.model.fleet import Checkpoint
from backfill.engine.checkpoint_order import CommandError
from backfill.ports.capabilities import CheckpointKeeper
from backfill.ports.errors import DriverError

Body = dict[str, object]


class UnknownNameError(CommandError):
    """There is nothing of this name."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"there is no {what} '{name[:80]}'")
        self.what, self.name, self.known = what, name, tuple(known)


@dataclass(frozen=True, slots=True)
class CheckpointDesk:
    """The keepers of one policy file, each once. Every call reads their files, and blocks."""

    keepers: Sequence[CheckpointKeeper]
    quota_mb: int | None
    jobs: Callable[[Sequence[str]], Mapping[str, Job]]  # what Slurm knows now of these jobs
    expired: Callable[[Iterable[Checkpoint]], tuple[str, ...]]  # ids whose time is over

    def kept(self) -> list[Checkpoint]:
        """All parts of all checkpoints."""
        return [checkpoint for keeper in self.keepers for checkpoint in keeper.checkpoints()]

    def told(self) -> Body:
        """Return the same as plain data."""
        return {"quota_mb": self.quota_mb, "checkpoints": [asdict(one) for one in self.kept()]}

    def known(self, ids: Iterable[str]) -> list[str]:
        """Return these ids, each once. UnknownNameError for one that is not kept."""
        there = {one.id for one in self.kept()}
        for identity in ids:
            if identity not in there:
                raise UnknownNameError("checkpoint", identity, sorted(there))
        return list(dict.fromkeys(ids))

    def verify(self, ids: Iterable[str], host: str = "") -> Body:
        """Read each one again, also after a damaged one. `host`: it is loaded there once as well."""
        results = []
        for identity in ids:
            problem = self.problem(identity, host)
            results.append({"id": identity, "ok": problem is None, "problem": problem or ""})
        return {"verified": results}

    def problem(self, identity: str, host: str = "") -> str | None:
        """Say why a checkpoint is of no use; None: it is complete and unchanged."""
        problem = f"{identity}: no provider of this policy file keeps checkpoints"
        for keeper in self.keepers:
            try:
                if host:
                    keeper.rehearse(host, identity)
                else:
                    keeper.verify(identity)
            except DriverError as error:
                problem = str(error)
            else:
                return None
        return problem

    def put_back(self, identity: str) -> Body:
        """Verify one, and return the order by which its job goes on from it. CommandError: it cannot."""
        problem = self.problem(identity)
        if problem:
            raise CommandError(problem)
        parts = [one for one in self.kept() if one.id == identity]
        if not parts:
            raise UnknownNameError("checkpoint", identity, ())
        first, generations = parts[0], {one.name: one.generation for one in parts}
        return {"id": identity, "job": first.job, "restarts": first.restarts, "parts": generations}

    def remove(self, ids: Iterable[str]) -> Body:
        """Remove these; one that is gone already is no trouble."""
        removed = list(ids)
        for identity in removed:
            for keeper in self.keepers:
                keeper.drop(identity)
        return {"removed": removed}

    def expire(self) -> Body:
        """Remove those whose time is over and that nobody needs, as Slurm shows it now.

        `staying`: by id, why another one whose time is over stays.
        """
        kept = self.kept()
        over = self.expired(kept)
        jobs = self.jobs(sorted({one.job for one in kept if one.job})) if over else {}
        parts = by_id(kept)
        going: list[str] = []
        staying: dict[str, str] = {}
        for identity in over:
            reason, why_not = needless(parts[identity], parts, jobs)
            if parts[identity][0].job not in jobs:
                why_not = (
                    f"{reason}, which may be an odd reading: to remove it all the same, delete it by its id"
                )
            if why_not:
                staying[identity] = why_not
            else:
                going.append(identity)
        return {**self.remove(going), "staying": staying}
