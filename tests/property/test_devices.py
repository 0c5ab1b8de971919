"""Whatever is asked for and returned in whatever order, devices are never held twice."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from backfill.core.model.devices import Holding, Sharing, VirtualFunction, Wanted, allocate

HOSTS = ("bm1", "bm2")
POOL = [VirtualFunction(h, f"0000:0{n}:00.{i}") for n, h in enumerate(HOSTS) for i in range(4)]

_wanted = st.builds(
    Wanted,
    instance=st.sampled_from([f"vn{i}" for i in range(6)]),
    host=st.sampled_from(HOSTS),
    job=st.sampled_from(["1", "2", "3"]),
    owner=st.sampled_from(["ann", "bob"]),
    functions=st.integers(0, 3),
    regions=st.sampled_from([(), (4,), (8,), (4, 8)]),
)
_steps = st.lists(_wanted | st.sampled_from([f"return vn{i}" for i in range(6)]), max_size=25)


@settings(max_examples=150, deadline=None)
@given(steps=_steps, sharing=st.sampled_from(list(Sharing)))
def test_devices_are_never_shared_against_the_rule(steps: list[Wanted | str], sharing: Sharing) -> None:
    """No function twice, none from another host, never more than there are, regions by job."""
    held: dict[str, Holding] = {}
    for step in steps:
        if isinstance(step, str):
            held.pop(step.removeprefix("return "), None)
            continue
        given_ = allocate(step, POOL, held.values(), sharing, "c1", f"s{len(held)}")
        if isinstance(given_, Holding):
            held[given_.instance] = given_
            assert given_ == allocate(step, POOL, held.values(), sharing, "c1", "other")
        _check(list(held.values()), sharing)


def _check(held: list[Holding], sharing: Sharing) -> None:
    for host in HOSTS:
        there = [h for h in held if h.host == host]
        functions = [address for h in there for address in h.functions]
        assert len(functions) == len(set(functions))
        assert set(functions) <= {vf.address for vf in POOL if vf.host == host}
        regions = {(region.id, h.job, region.size_mb) for h in there for region in h.regions}
        assert len(regions) == len({region for region, _, _ in regions})
        if sharing is Sharing.ONE_JOB:
            assert len({h.job for h in there}) <= 1
        if sharing is Sharing.ONE_OWNER:
            assert len({h.owner for h in there}) <= 1
    across = {(region.id, h.host, h.job) for h in held for region in h.regions}
    assert len(across) == len({region for region, _, _ in across})
