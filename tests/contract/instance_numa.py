"""The part of the instance provider's contract that is about binding instances to NUMA nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.fleet import CloneMethod, InstanceState
from backfill.ports.errors import NoCapacityError
from tests.contract.instance_rig import CARRY, INSTANT, MOVE, SMALL, Rig, born, known, spec, state
from tests.contract.lacking import lacking


def numbers(rig: Rig, host: str) -> set[int]:
    return {node.number for node in rig.provider.observe(host).host.numa}


def largest_mb(rig: Rig, host: str) -> tuple[int, int]:
    """The memory of the largest NUMA node, and how many have as much."""
    sizes = [node.memory_mb for node in rig.provider.observe(host).host.numa]
    return max(sizes), sizes.count(max(sizes))


class InstanceNumaContract:
    """For a `rig` whose provider binds each instance to one NUMA node of its host."""

    def test_a_host_shows_its_numa_nodes(self, rig: Rig) -> None:
        """Each with CPUs and memory of its own; none where its hypervisor does not tell of any."""
        assert numbers(rig, rig.provider.hosts[0])
        for host in rig.provider.hosts:
            seen = rig.provider.observe(host).host
            assert len({node.number for node in seen.numa}) == len(seen.numa)
            assert all(node.cpus >= 1 and node.memory_mb >= SMALL.memory_mb for node in seen.numa)

    @pytest.mark.parametrize("method", CloneMethod)
    def test_an_instance_is_bound_on_whichever_way_it_comes(self, rig: Rig, method: CloneMethod) -> None:
        """Made, restored or moved it is bound where it is; on disk it is bound to nothing."""
        if method is CloneMethod.INSTANT and INSTANT not in rig.abilities:
            lacking(INSTANT)
        host, other = rig.provider.hosts[:2]
        rig.provider.create(replace(spec(rig), method=method))
        rig.until(lambda: state(rig) is InstanceState.RUNNING)
        assert known(rig, host).numa in numbers(rig, host)
        rig.booted("vn1")
        rig.provider.pause(host, "vn1")
        assert known(rig, host).numa in numbers(rig, host)
        rig.provider.thaw(host, "vn1")
        rig.provider.suspend(host, "vn1")
        assert known(rig, host).numa is None
        rig.provider.restore(host, "vn1")
        assert known(rig, host).numa in numbers(rig, host)
        assert rig.provider.observe(host).instances["vn1"].numa in numbers(rig, host)
        place = host
        if {MOVE, CARRY} <= rig.abilities:
            rig.provider.migrate(host, "vn1", other)
            place = other
        assert known(rig, place).numa in numbers(rig, place)
        rig.provider.thaw(place, "vn1")
        assert state(rig, host=place) is InstanceState.RUNNING

    def test_instances_go_where_most_is_left(self, rig: Rig) -> None:
        """Two of them share a NUMA node only where there is no other."""
        host = born(rig)
        rig.provider.create(spec(rig, "vn2"))
        rig.until(lambda: state(rig, "vn2") is InstanceState.RUNNING)
        used = {known(rig, host, name).numa for name in ("vn1", "vn2")}
        assert len(used) == min(2, len(numbers(rig, host)))

    def test_memory_of_a_numa_node_is_given_once(self, rig: Rig) -> None:
        """A paused instance keeps its own, one on disk does not, and is not lost where it is taken."""
        host = rig.provider.hosts[0]
        memory_mb, many = largest_mb(rig, host)
        shape = replace(SMALL, memory_mb=memory_mb)
        names = [f"vn{number}" for number in range(1, many + 1)]
        for name in names:
            rig.provider.create(replace(spec(rig, name), flavour=shape))
        assert len({known(rig, host, name).numa for name in names}) == many
        rig.booted("vn1")
        rig.provider.pause(host, "vn1")
        one_more = replace(spec(rig, "vn9"), flavour=shape)
        with pytest.raises(NoCapacityError, match="NUMA nodes"):
            rig.provider.create(one_more)
        assert state(rig, "vn9") is None
        rig.provider.thaw(host, "vn1")
        rig.provider.suspend(host, "vn1")
        rig.provider.create(one_more)
        with pytest.raises(NoCapacityError, match=r"memory|NUMA nodes|MB"):
            rig.provider.restore(host, "vn1")
        assert state(rig) is InstanceState.SUSPENDED
        rig.provider.delete(host, "vn9")
        rig.provider.restore(host, "vn1")
        assert state(rig) is InstanceState.PAUSED

    def test_what_no_numa_node_could_carry_is_bound_to_none(self, rig: Rig) -> None:
        """Whether such a one may be made is not the provider's to decide."""
        host = rig.provider.hosts[0]
        memory_mb, _ = largest_mb(rig, host)
        rig.provider.create(replace(spec(rig), flavour=replace(SMALL, memory_mb=memory_mb + 4)))
        assert known(rig, host).numa is None
        rig.provider.delete(host, "vn1")
        cpus = max(node.cpus for node in rig.provider.observe(host).host.numa)
        rig.provider.create(replace(spec(rig), flavour=replace(SMALL, cpus=cpus + 1)))
        assert known(rig, host).numa is None
