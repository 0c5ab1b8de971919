"""The state tree, rendered by Salt itself for every role and kind; no master and no minion."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from backfill.drivers.salt import inside
from backfill.lab.saltenv import salt_python

pytestmark = pytest.mark.real

_ROOT = Path(__file__).parents[2]
_STATES = _ROOT / "salt_states"
_SAMPLE: dict[str, Any] = yaml.safe_load((_STATES / "pillar/backfill.sls").read_text())
# The sample, with the one value that it leaves to the site.
_PILLAR = {"backfill": {**_SAMPLE["backfill"], "munge": {"key_base64": "YSBrZXkgb2Ygbm9ib2R5J3M="}}}
_MATRIX = [("node", "virtual"), ("node", "metal"), ("controller", "metal"), ("image", "virtual")]
# Each loads every module of Salt: 0.6 to 1.9 s per run, measured.
_DEAR = ("unless", "onlyif", "creates")


class Renderer:
    """Salt in a process of its own, asked for one rendering after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [salt_python(), inside.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._read() == {"ready": True}

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def __call__(self, role: str, kind: str, pillar: object = None, **more: str) -> dict[str, Any]:
        """The low state, or errors; `pillar` replaces `_PILLAR`, `more` are grains of Salt's own."""
        self.order({"role": role, "kind": kind}, pillar, more=more)
        answer: dict[str, Any] = self._read()
        return answer

    def order(
        self,
        grains: dict[str, str],
        pillar: object = None,
        number: int = 1,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Ask for a rendering and wait for nothing."""
        request = {
            "number": number,
            "verb": "render",
            "grains": {"backfill": grains, **more},
            "states": str(_STATES),
            "pillar": str(_STATES / "pillar"),
            "given": _PILLAR if pillar is None else pillar,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End it."""
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()


@pytest.fixture(scope="module")
def render() -> Iterator[Renderer]:
    made = Renderer()
    yield made
    made.close()


@pytest.mark.parametrize(("role", "kind"), _MATRIX)
def test_every_role_renders(render: Renderer, role: str, kind: str) -> None:
    """Every role gives states with the sample pillar and a key, and none that is dear at boot."""
    found = render(role, kind)
    assert found["errors"] == []
    assert found["states"]
    for state in found["states"]:
        assert not [word for word in _DEAR if word in state], state
        assert state["state"] not in ("pkg", "pip", "git"), "nothing is installed at boot"


def test_the_key_is_in_no_rendering(render: Renderer) -> None:
    """What Salt shows, logs and caches of the states never holds the munge key."""
    key = _PILLAR["backfill"]["munge"]["key_base64"]
    for role, kind in _MATRIX:
        assert key not in json.dumps(render(role, kind))


def test_machines_that_are_rendered_at_once_do_not_meet(render: Renderer) -> None:
    """Nodes are enrolled from several threads; each gets states of its own, and all of them do."""
    for number in range(6):
        grains = {"role": "node", "kind": "virtual", "node": f"vn{number}", "address": f"10.0.0.{number}"}
        render.order(grains, number=number)
    for _ in range(6):
        found = render._read()
        assert found["errors"] == []
        hosts = next(s["contents"] for s in found["states"] if s["__id__"] == "hosts")
        assert f"10.0.0.{found['number']} vn{found['number']}\n" in hosts


def test_kinds_differ_where_they_must(render: Renderer) -> None:
    """A virtual node registers as a new one and has no service manager; metal is the opposite."""
    options = {}
    services = {}
    for kind in ("virtual", "metal"):
        states = {s["__id__"]: s for s in render("node", kind)["states"]}
        options[kind] = states["slurmd-defaults"]["contents"]
        services[kind] = {s["state"] for s in states.values()}
    assert "-Z -b" in options["virtual"]
    assert "-Z" not in options["metal"]
    assert "service" not in services["virtual"]
    assert "service" in services["metal"]


def owned(found: dict[str, Any]) -> dict[str, Any]:
    """The states of files, by path."""
    assert found["errors"] == []
    return {s["name"]: s for s in found["states"] if s["state"] == "file" and s["fun"] == "managed"}


def with_values(section: str, **values: object) -> dict[str, Any]:
    """The sample pillar with other values in one section."""
    pillar = copy.deepcopy(_PILLAR)
    pillar["backfill"][section] |= values
    return pillar


def test_a_slurmd_asks_every_controller(render: Renderer) -> None:
    """For its configuration, the primary first."""
    pillar = with_values("controller", backups=["10.77.0.5", "10.77.0.6"])
    contents = owned(render("node", "virtual", pillar))["/etc/default/slurmd"]["contents"]
    assert '"--conf-server 10.77.0.1:6817,10.77.0.5:6817,10.77.0.6:6817 -Z -b' in contents


_SITES = {"/etc/hosts", "/etc/nsswitch.conf", "/etc/chrony/chrony.conf"}


@pytest.mark.parametrize("role", ["node", "controller"])
def test_names_and_clock_of_a_site_stay_its_own(render: Renderer, role: str) -> None:
    """Its users come from sssd and its time from its servers; only an instance has none of both."""
    assert not _SITES & owned(render(role, "metal")).keys()
    assert owned(render("node", "virtual")).keys() >= _SITES


def test_the_clock_is_taken_over_where_the_pillar_says_whom_to_follow(render: Renderer) -> None:
    """Then the controller stands between the site's servers and the nodes; what was there is kept."""
    pillar = with_values("time", upstream=["ntp.site"], servers=["10.77.0.1"])
    head = owned(render("controller", "metal", pillar))["/etc/chrony/chrony.conf"]
    assert "server ntp.site iburst" in head["contents"]
    assert "allow 10.77.0.0/16" in head["contents"]
    node = owned(render("node", "metal", pillar))["/etc/chrony/chrony.conf"]
    assert "server 10.77.0.1 iburst" in node["contents"]
    assert "pidfile" not in node["contents"]  # systemd's unit waits for the one that it names
    assert (head["backup"], node["backup"]) == ("minion", "minion")


@pytest.mark.parametrize("role", ["controller", "node"])
def test_chrony_is_where_the_distribution_has_it(render: Renderer, role: str) -> None:
    """On metal; a guest's is always the same, as the master renders its states too."""
    pillar = with_values("time", upstream=["ntp.site"])
    for family, conf, service in (
        ("Debian", "/etc/chrony/chrony.conf", "chrony"),
        ("RedHat", "/etc/chrony.conf", "chronyd"),
    ):
        found = render(role, "metal", pillar, os_family=family)
        assert {name for name in owned(found) if name.endswith("chrony.conf")} == {conf}
        (follows,) = (s for s in found["states"] if s["__id__"] == "time")
        assert (follows["state"], follows["name"]) == ("service", service)
    virtual = owned(render("node", "virtual", pillar, os_family="RedHat"))
    assert "/etc/chrony/chrony.conf" in virtual


def test_exports_are_for_the_named_networks_and_root_is_nobody_there(render: Renderer) -> None:
    pillar = with_values("files", networks=["10.1.0.0/16", "bm7"])
    pillar["backfill"]["files"]["exports"][1]["trust_root"] = True
    server = owned(render("controller", "metal", pillar))["/etc/ganesha/ganesha.conf"]
    home, software = server["contents"].split("EXPORT {")[1:]
    for export, access, squash in ((home, "RW", "Root_Squash"), (software, "RO", "No_Root_Squash")):
        outside, client = export.split("CLIENT {")
        assert "Access_Type = None;" in outside
        assert f"Squash = {squash};" in outside
        given = client.partition("}")[0].split("\n")
        assert [line.strip() for line in given if line.strip()] == [
            "Clients = 10.1.0.0/16, bm7;",
            "Protocols = 4;",
            f"Access_Type = {access};",
        ]
    assert server["backup"] == "minion"


def test_exports_for_nobody_are_refused(render: Renderer) -> None:
    told = " ".join(render("controller", "metal", with_values("files", networks=[]))["errors"])
    assert "backfill:files:networks is empty" in told


def test_a_site_with_a_file_server_of_its_own_keeps_it(render: Renderer) -> None:
    found = render("controller", "metal", with_values("files", exports=[], networks=[]))
    assert "/etc/ganesha/ganesha.conf" not in owned(found)
    assert "files" not in {s["__id__"] for s in found["states"]}


@pytest.mark.parametrize("kind", ["virtual", "metal"])
def test_no_program_of_a_home_runs_as_root(render: Renderer, kind: str) -> None:
    """And a mount without these options, as a running node has it, is not made anew under its jobs."""
    mounts = [s for s in render("node", kind)["states"] if s["state"] == "mount"]
    assert len(mounts) == 2
    for mount in mounts:
        assert {"nosuid", "nodev"} <= set(mount["opts"].split(","))
        assert {"nosuid", "nodev"} <= set(mount["extra_mount_invisible_options"])


def test_the_mark_of_success_comes_last(render: Renderer) -> None:
    """The proof looks for the mark, so no state may come after it."""
    assert render("node", "virtual")["states"][-1]["__id__"] == "converged"


@pytest.mark.parametrize("role", ["node", "controller", "image"])
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("backfill", "no key backfill"),
        ("backfill:sentinel", "no backfill:sentinel"),
        ("backfill:schema", "backfill:schema is None"),
        ("backfill:munge:key_base64", "backfill:munge:key_base64 is missing"),
        ("backfill:controller:address", "backfill:controller:address is missing"),
        ("backfill:users", "backfill:users is missing"),
    ],
)
def test_a_partial_pillar_fails(render: Renderer, role: str, path: str, said: str) -> None:
    """Without any one of its keys the states do not render, and the sentence names the key."""
    pillar = copy.deepcopy(_PILLAR)
    *way, last = path.split(":")
    place = pillar
    for step in way:
        place = place[step]
    del place[last]
    found = render(role, "virtual", pillar)
    assert found["states"] == []
    assert said in " ".join(found["errors"])
    assert _PILLAR["backfill"]["munge"]["key_base64"] not in json.dumps(found)


@pytest.mark.parametrize("role", ["node", "controller"])
def test_the_sample_is_no_sites_pillar(render: Renderer, role: str) -> None:
    """Its key would take the place of the cluster's own, and everybody can read it."""
    found = render(role, "metal", _SAMPLE)
    assert found["states"] == []
    assert "backfill:munge:key_base64 is missing" in " ".join(found["errors"])


def test_a_pillar_of_wrong_kinds_fails(render: Renderer) -> None:
    """A text where a list is needed is refused by name."""
    pillar = copy.deepcopy(_PILLAR)
    pillar["backfill"]["users"] = "ada"
    assert "backfill:users is missing or not a list" in " ".join(render("node", "virtual", pillar)["errors"])


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("dns", "yes", "flag"),
        ("max_nodes", "many", "number"),
        ("services", False, "string"),
        ("slurmctld_parameters", "cloud_reg_addrs", "list"),
        ("time:upstream", "ntp.site", "list"),
    ],
)
def test_what_may_be_left_out_is_checked_where_it_is_given(
    render: Renderer, key: str, value: object, kind: str
) -> None:
    """A name where a list is needed would become one server for each of its letters."""
    pillar = copy.deepcopy(_PILLAR)
    *way, last = key.split(":")
    place = pillar["backfill"]
    for step in way:
        place = place[step]
    place[last] = value
    told = " ".join(render("controller", "metal", pillar)["errors"])
    assert f"backfill:{key} is not a {kind}" in told
