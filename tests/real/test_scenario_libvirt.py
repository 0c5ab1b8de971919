"""libvirtd dies at the worst moments, and machines of others on the hosts are left alone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from backfill.lab.policyfile import write_policy
from backfill.lab.spec import LIBVIRT_PORT
from tests.real.daemon_rig import PAUSE, REQUEUE, SUSPEND, DaemonRig, daemon_lab
from tests.real.struck_saves import strike_when_all_is_sent

pytestmark = pytest.mark.real

ONE: dict[str, Any] = {"limits": {"max_instances": 1}}
BY_PAUSE = {"ladder": [PAUSE, REQUEUE], **ONE}
BY_SUSPEND = {"ladder": [SUSPEND, REQUEUE], **ONE}
STRANGER = """<domain type='{kind}'><name>{name}</name><memory unit='MiB'>32</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os>{metadata}
<devices><memballoon model='none'/></devices></domain>"""
TAG = """<metadata><instance xmlns='urn:backfill:instance:1' cluster='other' node='vn1'
generation='1' cpus='1' memory_mb='32' created_s='1.0'/></metadata>"""


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("libvirt") as rig:
        yield rig


def kill_libvirtd(rig: DaemonRig, host: str) -> None:
    rig.lab.kill(f"libvirtd@{host}", signal.SIGKILL)


def answers(rig: DaemonRig) -> list[dict[str, Any]]:
    return [r.body for r in rig.journal("intent") if r.body["t"] == "AnswerClaim"]


def reachable(rig: DaemonRig, host: str) -> bool:
    return bool(next(h for h in rig.ask("hosts")["hosts"] if h["name"] == host)["reachable"])


def test_libvirtd_dies_during_a_pause(rig: DaemonRig) -> None:
    """Nothing is known of the host for a while; the job comes back as soon as it is."""
    rig.restart(**BY_PAUSE)
    low = rig.low()
    name, host = rig.where(low)
    high = rig.high(host)
    rig.becomes(name, "parked")
    kill_libvirtd(rig, host)
    rig.until(lambda: not reachable(rig, host))
    rig.release(high)
    assert rig.phase(name) == "parked"
    rig.lab.start(f"libvirtd@{host}")
    rig.becomes(name, "ready")
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"


def test_addresses_that_lead_to_other_hosts(rig: DaemonRig) -> None:
    """A mistake in the policy file: what stands still is where it was, and waits until that is mended."""
    rig.restart(**BY_PAUSE)
    low = rig.low()
    name, host = rig.where(low)
    other = rig.other(host)
    high = rig.high(host)
    rig.becomes(name, "parked")

    rig.stop()
    swapped = write_policy(rig.lab, rig.image, **led(rig, **{host: other, other: host}), **BY_PAUSE)
    refused = rig.run_daemon(swapped)
    assert refused.returncode == 78
    assert f"but until now it was {host}" in refused.stderr

    rig.start(**led(rig, **{host: other, other: other}), **BY_PAUSE)
    problems = {one["name"]: one["problem"] for one in rig.ask("hosts")["hosts"]}
    assert f"calls itself {other}, but until now it was {host}" in problems[host]
    assert problems[other] == ""
    rig.release(high)
    assert rig.phase(name) == "parked"
    assert rig.domains() == {host: [name], other: []}

    rig.restart(**BY_PAUSE)
    rig.becomes(name, "ready")
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"


def led(rig: DaemonRig, **ways: str) -> dict[str, Any]:
    """The policy file's hosts, each with another one's address; the port may be left out."""
    default = f":{LIBVIRT_PORT}"
    uris = {host: rig.lab.libvirt_uri(target) for host, target in ways.items()}
    return {
        "hosts": [
            {
                "name": host,
                "provider": "libvirt",
                "uri": uri if ways[host] == host else uri.replace(default, ""),
            }
            for host, uri in uris.items()
        ]
    }


def test_libvirtd_is_dead_when_the_host_is_wanted(rig: DaemonRig) -> None:
    """The hook says that the room is not proven; the eviction happens as soon as it can."""
    rig.restart(answer_within_s=1, **BY_PAUSE)
    low = rig.low()
    name, host = rig.where(low)
    kill_libvirtd(rig, host)
    high = rig.high(host)
    (answer,) = rig.until(lambda: answers(rig), what="the hook's answer")
    assert not answer["ok"]
    rig.lab.start(f"libvirtd@{host}")
    rig.becomes(name, "parked")
    rig.release(high)
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"


def test_libvirtd_dies_while_memory_is_written(rig: DaemonRig) -> None:
    """A half-written image is never used: in the end the memory is on disk, whole."""
    rig.restart(**BY_SUSPEND)
    low = rig.low()
    name, host = rig.where(low)
    high = rig.high(host, start=False)
    rig.becomes(name, "evicting", "parked")
    kill_libvirtd(rig, host)
    rig.lab.start(f"libvirtd@{host}")
    rig.until(lambda: rig.instances().get(name) == (host, "suspended"))
    rig.becomes(name, "parked")
    rig.release(high)
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"


def test_libvirtd_dies_when_memory_was_written(rig: DaemonRig) -> None:
    """QEMU has come to the end, and libvirtd has not heard: the image is used, the host is free."""
    rig.restart(**BY_SUSPEND)
    low = rig.low()
    name, host = rig.where(low)
    high = rig.high(host, start=False)
    strike_when_all_is_sent(rig.lab, host, rig.lab.shared / rig.lab.spec.name / name)
    rig.lab.start(f"libvirtd@{host}")
    rig.until(lambda: rig.instances().get(name) == (host, "suspended"))
    rig.becomes(name, "parked")
    rig.release(high)
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"


def test_machines_of_others_are_never_touched(rig: DaemonRig) -> None:
    """Without our mark, or with another cluster's: through evictions and removals they stay."""
    rig.restart(**BY_PAUSE)
    kinds = {"unmarked": "", "marked": TAG}
    before = {}
    for host in rig.lab.hosts:
        for name, metadata in kinds.items():
            text = STRANGER.format(kind=rig.lab.domain_type, name=name, metadata=metadata)
            path = rig.lab.shared / f"{name}.xml"
            path.write_text(text)
            rig.virsh(host, "create", "--paused", str(path))
            before[host, name] = identity(rig, host, name)
    low = rig.low()
    _, host = rig.where(low)
    high = rig.high(host)
    rig.release(high)
    rig.finish(low)
    rig.restart(scale={"idle_s": 0}, **ONE)
    rig.until(lambda: not rig.nodes(), what="the removal of all instances")
    assert {key: identity(rig, *key) for key in before} == before
    for where, name in before:
        rig.virsh(where, "destroy", name)


def identity(rig: DaemonRig, host: str, name: str) -> tuple[str, str]:
    """What changes when a machine is restarted, thawed or replaced."""
    return rig.virsh(host, "domuuid", name), rig.virsh(host, "domstate", "--reason", name)
