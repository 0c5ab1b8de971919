"""What Slurm's PrivateData keeps from users, and the daemon's answers without that.

Who may operate sees everything, as Slurm's own operators do. What cannot be told apart is left out: an
answer to somebody else never names a job that is not theirs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backfill.core.model.cluster import Job, SlurmSettings
from backfill.core.policies.access import Role
from backfill.engine.gate import Caller, GateError
from backfill.engine.summary import REFUSED
from backfill.ports.errors import DriverError

_LOG = logging.getLogger("backfill.privacy")
Body = dict[str, Any]

JOBS, NODES = "jobs", "nodes"
KINDS = frozenset({JOBS, NODES})
# Questions of whose answers the rest is told; any other one takes an operator, as those above.
_PARTED = frozenset({"status", "hosts", "nodes", "instances", "fleets", "explain", "checkpoints"})
# Questions that tell neither of a node nor of other people's jobs.
_HARMLESS = frozenset({"mine", "metrics", "ready", "harvest", "previewed"})
# `job 12, 13`, what a host was given to, and any other number that is not part of a name, an address or a
# fraction. A hook may have told of a job that Slurm does not show yet.
_A_JOB = re.compile(
    r"(?:\bjobs? |(?<=given to ))(?P<ids>\d[\d_+]*(?:, \d[\d_+]*)*)|(?<![\w.-])\d+(?:[_+]\d+)?(?!\w|\.\d)"
)
_SOMEBODYS = "another's job"


class Privacy:
    """What Slurm keeps from users, as it was read last; until it was read once, everything is kept."""

    def __init__(self, settings: Callable[[], SlurmSettings]) -> None:
        self._settings = settings
        self._hidden = KINDS
        self._known = False

    def read(self) -> None:
        """Ask Slurm anew: it may have been configured anew meanwhile. In any thread but the daemon's."""
        try:
            hidden = self._settings().private & KINDS
        except DriverError as error:
            _LOG.debug("PrivateData could not be read: %s", error)
            return
        if self._known and hidden != self._hidden:
            _LOG.info("Slurm's PrivateData keeps from users: %s", ", ".join(sorted(hidden)) or "nothing")
        self._hidden, self._known = hidden, True

    def hidden_from(self, caller: Caller) -> frozenset[str]:
        """Return the kinds of things of others that this caller may not see."""
        return frozenset() if caller.may(Role.OPERATOR) else self._hidden


@dataclass(frozen=True, slots=True)
class Veil:
    """Leaves out of answers to `user` what is hidden from them. Safe in any thread."""

    user: str
    hidden: frozenset[str]
    job: Callable[[str], Job | None]  # a job that Slurm knows now

    def require(self, question: str, body: Body) -> None:
        """Raise GateError for a question to which nothing could be answered."""
        if question in _HARMLESS:
            return
        if NODES in self.hidden:
            self._refuse(question, "lets users see no nodes")
        if question not in _PARTED:  # events and the plan tell of everybody's jobs all along
            self._refuse(question, "lets users see their own jobs only")
        subject = str(body.get("subject", ""))
        if question == "explain" and self.job(subject) is not None and not self._own(subject):
            # As of one that was never seen: that there is such a job is nothing for others either.
            raise GateError(never_seen(subject), "unknown")

    def over(self, question: str, answer: Body) -> Body:
        """Return an answer without what is hidden."""
        if "error" in answer:
            return answer
        match question:
            case "status":
                return self._status(answer)
            case "hosts" | "nodes":
                return {**answer, question: [self._place(one) for one in answer[question]]}
            case "mine":
                return {**answer, "jobs": [self._texts(one, "why") for one in answer["jobs"]]}
            case "fleets":
                return {**answer, "fleets": [*filter(None, map(self._fleet, answer["fleets"]))]}
            case "checkpoints":
                return {**answer, "checkpoints": [one for one in answer[question] if self._own(one["job"])]}
            case "explain":
                return self._explain(answer)
            case _:
                return answer

    def _refuse(self, question: str, what: str) -> None:
        raise GateError(f"'{question}' takes the role operator, as Slurm's PrivateData {what}", "forbidden")

    def _status(self, answer: Body) -> Body:
        # What is refused is told in words, and those may name others: only refusals of one's own follow.
        sentence = str(answer["sentence"]).partition(REFUSED)[0]
        return {
            **self._texts({**answer, "sentence": sentence}, "sentence"),
            "payloads": self._payloads(answer["payloads"]),
            "claims": [claim for claim in answer["claims"] if self._own(claim["job_id"])],
            "refusals": self._refusals(answer["refusals"]),
            "operations": [self._texts(one, "key", "problem") for one in answer["operations"]],
        }

    def _explain(self, answer: Body) -> Body:
        job, node, host = (answer[what] for what in ("job", "node", "host"))
        fleet = None if answer["fleet"] is None else self._fleet(answer["fleet"])
        own = job is not None and job["user"] == self.user
        if not own and (job is not None or (node is None and host is None and fleet is None)):
            return {
                "error": never_seen(answer["subject"]),
                "kind": "unknown",
            }  # a job of another, or its past
        return {
            **answer,
            "node": None if node is None else self._place(node),
            "host": None if host is None else self._place(host),
            "fleet": fleet,
            "refusals": self._refusals(answer["refusals"]),
            "operations": [self._texts(one, "key", "problem") for one in answer["operations"]],
            "story": [self._texts(line, "text") for line in answer["story"]] if own else [],
        }

    def _place(self, one: Body) -> Body:
        """Return a host or a node with the jobs that are the user's own alone."""
        shown = self._texts(one, "reason", "slurm_reason", "problem", "closed")
        for what in ("jobs", "given_to"):
            if what in one:
                shown[what] = [job_id for job_id in one[what] if self._own(job_id)]
        if "held" in one:
            shown["held"] = [held for held in one["held"] if self._own(held["id"])]
        return shown

    def _fleet(self, one: Body) -> Body | None:
        """Return an order for everybody's instances, or for the user's own job."""
        return None if one["job"] and not self._own(one["job"]) else self._texts(one, "reason")

    def _payloads(self, sums: Body) -> Body:
        """Those of pilots are the jobs of whoever sends them."""
        return {**sums, "pilots": [one for one in sums["pilots"] if self._own(one["pilot"])]}

    def _refusals(self, refusals: list[Body]) -> list[Body]:
        """Those about the user's own jobs."""
        own = [one for one in refusals if self._own(str(one["subject"]).removeprefix("job "))]
        return [{**self._texts(one, "what", "reason", "sentence"), "facts": []} for one in own]

    def _own(self, job_id: str) -> bool:
        job = self.job(job_id)
        return job is not None and job.user == self.user

    def _texts(self, one: Body, *names: str) -> Body:
        """Return the same with sentences in which no job of others is named."""
        return {**one, **{name: self._veiled(str(one[name])) for name in names if one.get(name)}}

    def _veiled(self, text: str) -> str:
        return _A_JOB.sub(self._named, text)

    def _named(self, match: re.Match[str]) -> str:
        """Return what may be said where a text names a job, or a number that may be one."""
        said = match[0]
        if match["ids"]:
            return said if all(map(self._own, match["ids"].split(", "))) else _SOMEBODYS
        known = self.job(said)
        return said if known is None or known.user == self.user else _SOMEBODYS


def never_seen(subject: str) -> str:
    """Say that there is nothing of this name."""
    return f"'{subject[:80]}' is no node, host, job or fleet that was ever seen"
