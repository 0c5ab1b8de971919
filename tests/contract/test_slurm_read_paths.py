"""Every way of reading a real Slurm gives the same picture as text, on every release."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from backfill.core.model.cluster import JobState
from backfill.drivers.slurm.reading.json_path import JsonPath
from backfill.drivers.slurm.reading.paths import ReadPath
from backfill.drivers.slurm.reading.rest_path import RestPath
from backfill.drivers.slurm.reading.text_path import TextPath
from backfill.lab.cluster import Lab
from backfill.lab.roots import RELEASES, SUITES
from backfill.ports.errors import UnreachableError
from tests.contract.workload_rig import STRANGE, await_state, job, node, running, spec
from tests.real.slurm_lab import RealRig, commands_of, slurm_lab
from tests.real.slurm_rest import slurmrestd

COMMENT = "c=d State=DOWN Reason=x\n\"q' é"


@dataclass(frozen=True)
class Scene:
    """A cluster with a bit of everything, at rest."""

    rig: RealRig
    ids: dict[str, str]


# Debian 12's machine has no slurmrestd; the roots of the other releases have.
_MARKS: dict[str, tuple[pytest.MarkDecorator, ...]] = {RELEASES[0]: (), RELEASES[-1]: (pytest.mark.gate,)}
WAYS = [
    pytest.param(release, way, marks=_MARKS.get(release, (pytest.mark.soak,)))
    for release in RELEASES
    for way in ("text", "json", "rest")
    if way != "rest" or release in SUITES
]
pytestmark = [
    pytest.mark.real,
    pytest.mark.parametrize(("scene", "path"), WAYS, indirect=True, scope="module"),
]


@pytest.fixture(scope="module")
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with slurm_lab("slurm-paths", release=request.param) as lab:
        yield arranged(RealRig.of(lab))


def arranged(rig: RealRig) -> Scene:
    """Jobs of every kind and nodes of every kind, with the worst texts that Slurm takes."""
    host, other = rig.hosts
    ids = {"running": running(rig, host), "suspended": running(rig, host)}
    rig.manager.suspend_job(ids["suspended"])
    ids["ended"] = running(rig, other)
    rig.finish(ids["ended"])
    rig.until(lambda: not job(rig, ids["ended"]).holds_nodes)
    ids["strange"] = rig.submit(host, name=STRANGE, hold=True, requeue=False)
    rig.ctl("scontrol", "update", f"JobId={ids['strange']}", f"Comment={COMMENT}")
    ids["array"] = rig.submit(host, tasks=3, hold=True)
    held = ("sbatch", "--parsable", "-H", "-p", "any", "-o", "/dev/null")
    ids["sparse"] = rig.ctl(*held, "--array=0,3,5,7%2", "-n2", "--mem-per-cpu=100", "--wrap=:")
    ids["long"] = rig.ctl(*held, f"--array={','.join(str(i * i) for i in range(31))}", "--wrap=:")
    ids["stepped"] = rig.ctl(*held, "--array=0-10:3", "--wrap=:")
    ids["exclusive"] = rig.ctl(*held, "--exclusive", "--wrap=:")
    ids["owners"] = rig.ctl(*held, "--exclusive=user", "--wrap=:")
    ids["het"] = rig.ctl(*held, "-N2", "-t", "1-2:03", "--mem=100", ":", "-n1", "--wrap=:")
    ids["started"] = rig.submit(host, tasks=1)
    await_state(rig, f"{ids['started']}_1", JobState.RUNNING)
    rig.ctl("scontrol", "update", f"NodeName={other}", f"Comment={COMMENT}")
    rig.ctl("scontrol", "update", f"NodeName={other}", "State=DRAIN", f"Reason=disk: {STRANGE}")
    rig.manager.create_node(spec())
    return Scene(rig, ids)


@pytest.fixture(scope="module")
def path(request: pytest.FixtureRequest, scene: Scene) -> Iterator[ReadPath]:
    commands = commands_of(scene.rig.lab)
    if request.param != "rest":
        yield JsonPath(commands) if request.param == "json" else TextPath(commands)
        return
    with slurmrestd(scene.rig.lab) as restd:
        yield RestPath(commands, restd.socket)


def test_everything_is_the_same_as_by_text(scene: Scene, path: ReadPath) -> None:
    """Each field of each node and job, those of arrays and heterogeneous jobs one by one."""
    nodes, jobs = path.everything()
    wanted_nodes, wanted_jobs = TextPath(commands_of(scene.rig.lab)).everything()
    assert jobs.keys() == wanted_jobs.keys()
    assert jobs == wanted_jobs
    assert nodes == wanted_nodes
    assert set(nodes) == {*scene.rig.hosts, "vn1"}


def test_every_waiting_task_of_an_array_is_there(scene: Scene, path: ReadPath) -> None:
    """The last one of a step, and those behind the place where Slurm likes to cut a long list."""
    jobs = path.all_jobs()
    tasks = {"stepped": (0, 3, 6, 9), "sparse": (0, 3, 5, 7), "long": [i * i for i in range(31)]}
    for which, numbers in tasks.items():
        array = scene.ids[which]
        found = {job_id for job_id in jobs if job_id.startswith(f"{array}_")}
        assert found == {f"{array}_{number}" for number in numbers}


def test_an_exclusive_job_is_known_on_every_release(scene: Scene, path: ReadPath) -> None:
    """One of any user's, and none that shares its nodes with those of its own."""
    found = {job_id for job_id, job in path.all_jobs().items() if job.exclusive}
    assert found == {scene.ids["exclusive"]}


def test_what_was_asked_for_and_nothing_else(scene: Scene, path: ReadPath) -> None:
    """Some jobs, jobs of a node, some nodes; what Slurm does not know is absent."""
    ids = {scene.ids["running"], f"{scene.ids['sparse']}_0", f"{scene.ids['het']}+1", "99999"}
    everything = path.all_jobs()
    for wanted in (ids, {scene.ids["running"], "99999"}, {f"{scene.ids['array']}_2"}, {"99999"}):
        assert path.jobs(wanted) == {i: everything[i] for i in wanted - {"99999"}}
    host, other = scene.rig.hosts
    on_host = path.jobs_on([host])
    assert {scene.ids["running"], scene.ids["suspended"]} <= on_host.keys()
    assert scene.ids["ended"] not in on_host
    assert set(path.nodes([other, "vn250", "vn1"])) == {other, "vn1"}
    assert path.nodes(["vn250"]) == {}


def test_texts_of_users_and_admins_are_read_back(scene: Scene, path: ReadPath) -> None:
    """Separators, line breaks, quotes and non-ASCII in names, comments and reasons harm nothing."""
    nodes, jobs = path.everything()
    assert jobs[scene.ids["strange"]].name == STRANGE
    drained = nodes[scene.rig.hosts[1]]
    assert drained.reason.split() == f"disk: {STRANGE}".split()
    assert drained.drained_by_others
    assert drained.base.value == "IDLE"


def test_a_controller_that_is_silent_or_gone_is_unreachable(scene: Scene, path: ReadPath) -> None:
    """Never an empty picture, never a hang; as soon as it is back, the same way reads again."""
    lab = scene.rig.lab
    before = path.everything()
    impatient = like(path, lab)
    lab.kill("slurmctld", signal.SIGSTOP)
    try:
        for question in (impatient.everything, lambda: impatient.jobs([scene.ids["running"]])):
            with pytest.raises(UnreachableError):
                question()
    finally:
        lab.kill("slurmctld", signal.SIGCONT)
    scene.rig.until(lambda: path.all_jobs().keys() == before[1].keys())
    lab.stop("slurmctld")
    try:
        with pytest.raises(UnreachableError):
            impatient.all_jobs()
    finally:
        lab.start("slurmctld")
    scene.rig.until(lambda: all(node(scene.rig, host).responding for host in scene.rig.hosts))
    assert path.all_jobs().keys() == before[1].keys()


def like(path: ReadPath, lab: Lab) -> ReadPath:
    """The same way of reading with little patience."""
    commands = commands_of(lab, timeout_s=0.5)
    match path:
        case RestPath():
            return RestPath(commands, path.socket)
        case JsonPath():
            return JsonPath(commands)
        case _:
            return TextPath(commands)
