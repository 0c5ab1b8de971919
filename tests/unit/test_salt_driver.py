"""The driver of Salt: names, results read strictly, and when a look is enough instead of a run."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backfill.drivers.libvirt.guest.seed import Identity, seed_tar
from backfill.drivers.salt import results
from backfill.drivers.salt.driver import SaltProvisioner, minion_id, node_of
from backfill.ports.errors import DriverError, RefusedError

# Answers as the master would: what it is told to say, by verb; and notes what it was asked.
_STUB = """
import json, sys
told = json.load(open(sys.argv[1]))
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    open(sys.argv[1] + ".asked", "a").write(line)
    print(json.dumps({"number": asked["number"], **told[asked["verb"]]}), flush=True)
"""
STATE = {"state": "test", "fun": "nop", "name": "done", "__id__": "done"}
RENDERED = {
    "errors": [],
    "states": [STATE],
    "folders": [],
    "others": False,
    "lets_in": "",
    "seals": {"/etc/munge/munge.key": ["text", "sum"]},
}
SILENT = "it did not answer; see that its minion runs and reaches the master"
FINE = {"ret": {"a": {"result": True}}, "retcode": 0}
SAME = {"ret": {"same": True, "told": ""}, "retcode": 0}

Connect = Callable[[dict[str, Any]], SaltProvisioner]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    made: list[SaltProvisioner] = []
    (tmp_path / "stub.py").write_text(_STUB)

    def work(told: dict[str, Any]) -> SaltProvisioner:
        (tmp_path / "told").write_text(json.dumps(told))
        one = SaltProvisioner(sys.executable, "", within_s=5.0)
        one._link._argv = [sys.executable, str(tmp_path / "stub.py"), str(tmp_path / "told")]
        made.append(one)
        return one

    yield work
    for one in made:
        one.close()


def asked(tmp_path: Path) -> list[dict[str, Any]]:
    """The requests after the first, which asks for the keys."""
    lines = (tmp_path / "told.asked").read_text().splitlines()
    return [json.loads(line) for line in lines][1:]


def test_where_a_look_is_enough_nothing_is_run(connect: Connect, tmp_path: Path) -> None:
    """Each guest is asked about its own list; it has no part in what the others are asked."""
    salt = connect(
        {
            "keys": {"accepted": ["vn1.g2"]},
            "again": {"answers": {"vn1.g2": RENDERED}},
            "look": {"answers": {"vn1.g2": SAME}},
        }
    )
    run = salt.apply(["vn1"], test=False)["vn1"]
    assert (run.ok, run.changed, run.looked) == (True, (), True)
    again, look = asked(tmp_path)
    assert again["ids"] == look["ids"] == ["vn1.g2"]
    checksum, seals = look["asked"]["vn1.g2"]
    assert len(checksum) == 64
    assert seals == RENDERED["seals"]


@pytest.mark.parametrize(
    "answer",
    [
        {"ret": {"same": False, "told": "/etc/hosts differs"}, "retcode": 0},
        {"ret": "'backfill_look.look' is not available.", "retcode": 254},
        {"ret": {"same": True}, "retcode": 1},
        {"ret": None, "retcode": 0},
    ],
)
def test_whatever_is_not_seen_is_run(connect: Connect, tmp_path: Path, answer: dict[str, Any]) -> None:
    """Also bare metal, of which nobody has a list, and an image that cannot look."""
    salt = connect(
        {
            "keys": {"accepted": ["vn1.g2", "bm1"]},
            "again": {"answers": {"vn1.g2": RENDERED}},
            "look": {"answers": {"vn1.g2": answer}},
            "apply": {"answers": {"vn1.g2": FINE, "bm1": FINE}},
        }
    )
    runs = salt.apply(["bm1", "vn1"], test=True)
    assert [(run.node, run.ok, run.looked) for run in runs.values()] == [
        ("bm1", True, False),
        ("vn1", True, False),
    ]
    assert [(a["verb"], a["ids"]) for a in asked(tmp_path)][1:] == [
        ("look", ["vn1.g2"]),
        ("apply", ["bm1", "vn1.g2"]),
    ]


@pytest.mark.parametrize("answer", [None, {"out": "no_return", "ret": "silence", "retcode": 1}])
def test_whoever_does_not_even_look_is_silent(connect: Connect, tmp_path: Path, answer: Any) -> None:
    """Nobody waits for a second silence."""
    salt = connect(
        {
            "keys": {"accepted": ["vn1.g2"]},
            "again": {"answers": {"vn1.g2": RENDERED}},
            "look": {"answers": {"vn1.g2": answer} if answer else {}},
        }
    )
    run = salt.apply(["vn1"], test=True)["vn1"]
    assert (run.ok, run.answered, run.problem) == (False, False, SILENT)


def test_states_that_do_not_render_are_told_by_the_run(connect: Connect, tmp_path: Path) -> None:
    salt = connect(
        {
            "keys": {"accepted": ["vn1.g2"]},
            "again": {"answers": {"vn1.g2": {**RENDERED, "errors": ["no sentinel"]}}},
            "apply": {"answers": {"vn1.g2": {"ret": ["no sentinel"], "retcode": 1}}},
        }
    )
    assert salt.apply(["vn1"], test=False)["vn1"].problem == "no sentinel"


def test_what_others_bring_to_the_master_is_never_seen(connect: Connect) -> None:
    """States from a git server or a pillar from elsewhere: the list says that only a run proves."""
    key = {"private": "p", "public": "q", "master": "m"}
    salt = connect({"keys": {"accepted": []}, "states": {**RENDERED, "others": True}, "make_key": key})
    listed = salt.enrol("vn1", 1, "10.0.0.1/16")["/etc/backfill/stated"]
    assert listed.content.startswith(b"run what ext_pillar or another file server")


def test_a_secret_of_a_states_file_is_roots_in_the_guest(connect: Connect) -> None:
    """Neither the file nor the list, which holds its text again, is there for others to read."""
    key = {"private": "p", "public": "q", "master": "m"}
    path = "/etc/sssd/sssd.conf"
    secret = {
        "state": "file",
        "fun": "managed",
        "name": path,
        "__id__": path,
        "mode": "0600",
        "contents": "s3cret",
    }
    rendered = {**RENDERED, "states": [STATE, secret]}
    salt = connect({"keys": {"accepted": []}, "states": rendered, "make_key": key})
    guest = Identity("vn1", "10.0.0.1/16", "", "", "", "")
    seed = seed_tar(guest, b"key", more=salt.enrol("vn1", 1, "10.0.0.1/16"))
    with tarfile.open(fileobj=io.BytesIO(seed)) as tar:
        modes = {member.name: member.mode for member in tar if b"s3cret" in _content(tar, member)}
    assert modes == {"etc/sssd/sssd.conf": 0o600, "etc/backfill/stated": 0o400}


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return b"" if file is None else file.read()


def test_keys_of_earlier_generations_are_void_once_the_name_is_enrolled(
    connect: Connect, tmp_path: Path
) -> None:
    """Also those that could not be forgotten when their instances went; others keep theirs."""
    key = {"private": "p", "public": "q", "master": "m"}
    accepted = {"accepted": ["vn1.g2", "vn1.g3", "vn11.g2", "bm1"]}
    salt = connect({"keys": accepted, "delete_key": {}, "states": RENDERED, "make_key": key})
    salt.enrol("vn1", 4, "10.0.0.1/16")
    assert [(a["verb"], a["id"]) for a in asked(tmp_path) if a["verb"] != "states"] == [
        ("delete_key", "vn1.g2"),
        ("delete_key", "vn1.g3"),
        ("make_key", "vn1.g4"),
    ]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (
            {"errors": ["Rendering SLS 'base:node.limits' failed: a tab"]},
            "do not render: {folder}/node/limits.sls: a tab; mend that",
        ),
        ({"states": []}, "names no states for a node.*see top.sls in .*{folder}"),
    ],
)
def test_nothing_is_made_of_states_that_are_wrong_or_none(
    connect: Connect, tmp_path: Path, found: dict[str, Any], told: str
) -> None:
    """A node of which nobody has said what it shall be would prove all of that."""
    (tmp_path / "node").mkdir()
    (tmp_path / "node/limits.sls").touch()
    rendered = {**RENDERED, **found, "folders": [str(tmp_path)]}
    salt = connect({"keys": {"accepted": []}, "states": rendered})
    with pytest.raises(DriverError, match=told.format(folder=tmp_path)):
        salt.enrol("vn1", 1, "10.0.0.1/16")
    with pytest.raises(DriverError, match=told.format(folder=tmp_path)):
        salt.check()


@pytest.mark.parametrize("key", ["auto_accept", "open_mode"])
def test_a_master_that_lets_everybody_in_is_told(connect: Connect, key: str) -> None:
    """A stranger who calls itself vn1.g99 was given the pillar of vn1."""
    salt = connect({"states": {**RENDERED, "lets_in": key}})
    with pytest.raises(RefusedError, match=f"{key} is set: whoever takes a node's name .*; set {key}: false"):
        salt.check()
    connect({"states": RENDERED}).check()


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ({"result": True, "changes": {"a": 1}}, ""),
        ({"result": None, "comment": "would be made"}, "a: would be made"),
        ({"comment": "half"}, "a: half"),
        ({"result": "yes", "comment": "odd"}, "a: odd"),
        ({"result": False, "comment": "no"}, "a: no"),
    ],
)
def test_only_what_was_done_is_a_success(state: dict[str, object], problem: str) -> None:
    """A state says None where it has only been tried, as with `test: True` in the tree."""
    assert results.state_run("vn1", {"ret": {"a": state}, "retcode": 0}, test=False).problem == problem


def test_a_trial_may_say_what_would_be_done() -> None:
    """That is what it is for; half an answer is none there either."""
    answer = {"ret": {"a": {"result": None, "comment": "would be made"}}, "retcode": 0}
    run = results.state_run("vn1", answer, test=True)
    assert (run.ok, run.changed) == (True, (("a", "would be made"),))
    assert results.state_run("vn1", {"ret": {"a": {}}, "retcode": 0}, test=True).problem == "a: "


@pytest.mark.parametrize("text", ["", "\n", "Rendering SLS 'base:a' failed:"])
def test_an_error_without_a_word_is_one_all_the_same(text: str) -> None:
    assert results.problem_in([text])


def test_a_name_with_a_number_of_any_length_is_a_name() -> None:
    """A minion may call itself so in an event; Python reads no number of more than 4300 digits."""
    assert node_of("vn1.g" + "1" * 5000) == ("vn1.g" + "1" * 5000, 0)


_INCLUDED = """Rendering SLS 'base:node' failed: Jinja syntax error: Expected an expression
/tmp/x/var/cache/salt/minion/files/base/node/map.jinja(30):
---
[...]
key: secret
{% if %}    <======================
---"""
_RAISED = """Rendering SLS 'base:node' failed: Jinja error: the pillar has no key backfill
/tmp/x/var/cache/salt/minion/files/base/backfill/guard.jinja(7):
---"""
_CALLED = """Rendering SLS 'base:a' failed: Jinja error: division by zero
Traceback (most recent call last):
  File "<template>", line 35, in top-level template code
ZeroDivisionError: division by zero

; line 35

---
key: secret    <======================
---"""
_YAML = """Rendering SLS 'base:a' failed: while constructing a mapping
  in "<unicode string>", line 2, column 1
found conflicting ID 'limits'
  in "<unicode string>", line 12, column 1"""
_PILLAR = """Pillar failed to render. Additional info follows:

- Rendering SLS 'backfill' failed, render error:
while parsing a flow sequence
  in "<unicode string>", line 43, column 8
did not find expected ',' or ']'
  in "<unicode string>", line 44, column 1
Traceback (most recent call last):"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Rendering SLS 'base:a' failed: no b; line 3\n\n---\nkey: secret\n---", "a: no b; line 3"),
        (_INCLUDED, "node: Jinja syntax error: Expected an expression; node/map.jinja line 30"),
        (_RAISED, "node: Jinja error: the pillar has no key backfill"),
        (_CALLED, "a: Jinja error: division by zero; line 35"),
        (
            _YAML,
            "a: while constructing a mapping; found conflicting ID 'limits'; line 12 of what it renders to",
        ),
        (
            _PILLAR,
            "the pillar: backfill: while parsing a flow sequence; did not find expected ',' "
            "or ']'; line 44 of what it renders to",
        ),
        ("Specified SLS a is not available", "Specified SLS a is not available"),
    ],
)
def test_what_does_not_render_is_told_with_its_place(text: str, told: str) -> None:
    """As Salt 3008 says it; the lines of the file, which may have secrets, are left out."""
    assert results.rendering_error(text) == told


@pytest.mark.parametrize(("node", "generation"), [("vn1", 7), ("bm1", 0), ("a.g2", 3)])
def test_a_minions_name_tells_node_and_generation(node: str, generation: int) -> None:
    assert node_of(minion_id(node, generation)) == (node, generation)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Minion did not return. [No response]", (False, SILENT)),
        ({"out": "no_return", "ret": "Minion did not return", "retcode": 1}, (False, SILENT)),
        (
            {"ret": ["Rendering SLS 'base:x' failed: no key\nx.sls(3):\n---\nTraceback\n\n"], "retcode": 1},
            (True, "x: no key"),
        ),
        ({"ret": {}, "retcode": 0}, (True, "it answered '{}' instead of states")),
        ({"ret": {"a": {"result": True}}, "retcode": 0}, (True, "")),
        ({"ret": {"a": {"result": True}}, "retcode": 2}, (True, "it ended with status 2")),
        (
            {"ret": {"a": {"__id__": "hosts", "result": False, "comment": "no"}}, "retcode": 2},
            (True, "hosts: no"),
        ),
    ],
)
def test_only_states_that_all_hold_are_a_success(answer: object, expected: tuple[bool, str]) -> None:
    """For silence Salt returns a text, which is true; for bad states a list."""
    found = results.state_run("vn1", answer, test=False)
    assert (found.answered, found.problem) == expected
