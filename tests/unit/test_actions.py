"""Actions: what tells them apart, whose provider is asked, and that each has all that it needs."""

from __future__ import annotations

import inspect
import typing

import pytest

from backfill.core.model import actions as act
from backfill.core.model.devices import Sharing, Wanted
from backfill.core.model.fleet import Checkpoint, Flavour, InstanceSpec, Tag
from backfill.core.model.records import decode, encode, encode_briefly
from backfill.engine.narrate import sentence
from backfill.engine.workers import WorkerPool, pool_of


class Common(typing.TypedDict):
    """What every action has."""

    subject: str
    generation: int
    reason: str


HEAD: Common = {"subject": "vn1", "generation": 2, "reason": "a test"}
PARENTS: Common = {"subject": "bm1", "generation": 0, "reason": "a test"}
FLAVOUR = Flavour(cpus=2, memory_mb=256)
SPEC = InstanceSpec("vn1", "bm1", Tag("c", "vn1", 2), FLAVOUR, "default", "10.77.1.1/16")
KEPT = Checkpoint("c7", "vn1", "7", 0, 2, "bm1", ("vn1",), 1.0, 2.0)
WANTED = Wanted("vn1", "bm1", "7", "ann", functions=1)

# Each action with what follows its kind, subject and generation in its key, and where it lands.
ALL: tuple[tuple[act.DriverAction, str, str, str], ...] = (
    (act.CreateNode(**HEAD, address="10.77.1.1", cpus=2, memory_mb=256, features=()), "", "", ""),
    (act.DeleteNode(**HEAD), "", "", ""),
    (act.DrainNode(**HEAD), "", "", ""),
    (act.UndrainNode(**HEAD, host="bm1"), "", "bm1", ""),
    (act.SetAddress(**HEAD, address="10.77.1.1"), ":10.77.1.1", "", ""),
    (act.DownNode(**HEAD), "", "", ""),
    (act.SuspendJob(**HEAD, job_id="7"), ":7", "", ""),
    (act.ResumeJob(**HEAD, job_id="7"), ":7", "", ""),
    (act.LimitJob(**HEAD, job_id="7", limit_s=60.0), ":7", "", ""),
    (act.RequeueJob(**HEAD, job_id="7", host="bm1"), ":7", "bm1", ""),
    (act.CancelJob(**HEAD, job_id="7"), ":7", "", ""),
    (act.KickJob(**HEAD, job_id="7"), ":7", "", ""),
    (
        act.WarnJob(**HEAD, job_id="7", host="bm1", number=7, user="ann", signal="", command=(), ends_s=60.0),
        ":7",
        "bm1",
        "",
    ),
    (act.TellJob(**HEAD, job_id="7", text="it waits"), ":7", "", ""),
    (act.HoldJob(**HEAD, job_id="7", text="held"), ":7", "", ""),
    (act.PinJob(**HEAD, job_id="7", nodes=("vn1", "vn2"), lives=(1, 4)), ":vn1.1,vn2.4", "", ""),
    (act.UnpinJob(**HEAD, job_id="7"), ":7", "", ""),
    (act.ReleaseJob(**HEAD, job_id="7", text="it may begin"), ":7", "", ""),
    (act.NameMachines(**HEAD, job_id="7", text="they are there"), ":7", "", ""),
    (act.EndInside(**HEAD, job_id="8", of="7", restarts=0), ":8", "", ""),
    (act.RevokeJob(**HEAD, job_id="7"), ":7", "", ""),
    (act.CreateInstance(**HEAD, spec=SPEC), "", "bm1", "bm1"),
    (act.DeleteInstance(**HEAD, host="bm1"), "", "bm1", ""),
    (act.SuspendInstance(**HEAD, host="bm1"), "", "bm1", ""),
    (act.RestoreInstance(**HEAD, host="bm1"), "", "bm1", "bm1"),
    (act.MigrateInstance(**HEAD, host="bm1", target="bm2"), ":bm2", "bm1", "bm2"),
    (act.CancelMove(**HEAD, host="bm1"), "", "bm1", ""),
    (act.PauseInstance(**HEAD, host="bm1"), "", "bm1", ""),
    (act.ThrottleInstance(**HEAD, host="bm1", percent=5), ":5", "bm1", ""),
    (act.ThrottleInstance(**HEAD, host="bm1", percent=None), ":off", "bm1", "bm1"),
    (act.ThawInstance(**HEAD, host="bm1", held=()), "", "bm1", "bm1"),
    (act.WakeInstance(**HEAD, host="bm1"), "", "bm1", ""),
    (act.ProbeJobs(**HEAD, host="bm1"), "", "bm1", ""),
    (act.HoldDevices(**HEAD, host="bm1", wanted=WANTED, sharing=Sharing.ANYONE), ":7", "bm1", ""),
    (act.ReturnDevices(**HEAD, host="bm1"), "", "bm1", ""),
    (act.UnplugDevices(**HEAD, host="bm1"), "", "bm1", ""),
    (act.PlugDevices(**HEAD, host="bm1", job_id="7"), ":7", "bm1", ""),
    (act.KeepCheckpoint(**HEAD, host="bm1", wanted=KEPT, quota_mb=None), ":c7", "bm1", ""),
    (act.PutBackCheckpoint(**HEAD, host="bm1", id="c7"), ":c7", "bm1", ""),
    (act.MakeParent(**PARENTS, image="default", flavour=FLAVOUR), ":default", "bm1", "bm1"),
    (act.CancelParents(**PARENTS), "", "bm1", ""),
    (
        act.SubmitPilot(
            **HEAD,
            slot=1,
            limit_s=60.0,
            user="ann",
            partition="htc",
            script="/p.sh",
            directory="",
            cpus=1,
            options=(),
        ),
        "",
        "",
        "",
    ),
    (act.WithdrawPilot(**HEAD, job_id="7"), ":7", "", ""),
    (act.TellPilot(**HEAD, host="bm1", job_id="7", number=7, restarts=0, ends_s=60.0), ":7", "bm1", ""),
)


def test_each_class_of_an_action_belongs_to_a_group() -> None:
    """One that stands in none could be made and never be done; here each has an example."""
    public = {
        kind
        for _, kind in inspect.getmembers(act, inspect.isclass)
        if issubclass(kind, act.Head) and not kind.__name__.endswith("Head")
    }
    assert public == set(typing.get_args(act.DriverAction))
    assert public == {type(action) for action, *_ in ALL}
    named = {p.kind for kind in public for p in inspect.signature(kind).parameters.values()}
    assert named == {inspect.Parameter.KEYWORD_ONLY}  # or a changed order would mix hosts up unseen


@pytest.mark.parametrize(("action", "extra", "asks", "lands_on"), ALL)
def test_an_action_says_who_it_is_and_where(
    action: act.DriverAction, extra: str, asks: str, lands_on: str
) -> None:
    """Its key, its provider's host, where it lands, its sentence; and the journal gives it back."""
    assert action.key == f"{type(action).__name__}:{action.subject}:{action.generation}{extra}"
    assert (action.asks, action.lands_on) == (asks, lands_on)
    assert sentence(action).endswith(": a test")
    assert isinstance(pool_of(action), WorkerPool)
    assert decode(encode(action)) == decode(encode_briefly(action)) == action


def test_what_may_go_on_when_we_are_blind_or_cannot_write() -> None:
    """Giving a host back; unwritten only what the hypervisor shows and can be undone."""
    blind = {type(action).__name__ for action, *_ in ALL if action.safe_when_blind}
    assert blind == {
        *("CancelMove", "PauseInstance", "SuspendInstance", "ThrottleInstance", "CancelParents"),
        "UnplugDevices",
    }
    unwritten = [action for action, *_ in ALL if action.safe_unwritten]
    assert unwritten == [
        act.PauseInstance(**HEAD, host="bm1"),
        act.ThrottleInstance(**HEAD, host="bm1", percent=5),
    ]


def test_an_action_of_an_older_journal_is_read() -> None:
    """Its subject was called its name, and its reason came last."""
    body: dict[str, object] = {"t": "PauseInstance", "name": "vn1", "generation": 2, "host": "bm1"}
    assert decode({**body, "reason": "a test"}) == act.PauseInstance(**HEAD, host="bm1")
