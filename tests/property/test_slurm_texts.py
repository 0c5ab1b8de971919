"""Whatever Slurm's tools print, it is read or refused; nobody's text becomes a field or a job."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from backfill.core.model.cluster import Job, Node
from backfill.core.model.quantities import parse_hostlist
from backfill.drivers.slurm.checks import one_line, reason_text
from backfill.drivers.slurm.commands import meaning_of
from backfill.drivers.slurm.reading.ahead import read_reservations
from backfill.drivers.slurm.reading.parse import asked_hosts, read_nodes
from backfill.drivers.slurm.reading.records import jobs_of, nodes_of, read_document
from backfill.ports.errors import DriverError
from tests.unit.test_slurm_parse import BM1, VN1, WORKS, read, record
from tests.unit.test_slurm_records import NODE, OLD, new

# What separates something somewhere in Slurm's output, and what has been met in real names.
PIECES = (
    "=",
    " ",
    "\n",
    "\r",
    "\t",
    '"',
    "'",
    "|",
    ",",
    "[",
    "]",
    "(null)",
    "%",
    "\\",
    "\x00",
    "\x1f",
    "\x1d",
    "\x1e",
    "\x85",
    "\u2028",
    "é",
    "\ufffd",
    "🦆",
    "NodeName=x ",
    " State=DOWN ",
    "JobId=7",
    " Reason=backfill: y [root@1]",
    " Comment=",
    "StartTime=1",
    "Unknown",
    "N/A",
    "INVALID",
    "UNLIMITED",
    "nan",
    "inf",
    "1e999",
    "-1",
    "9" * 25,
    "slurm_load_jobs error: x\n",
    "bm[1-",
    "[1-3,7]",
    "r[0-1]n[08-10]",
    "1-99999999999",
    "Node x not found\n",
    "٣",
)
_T = TypeVar("_T")
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=6).map("".join)
# What squeue's output can hold: decoded with replacement characters, it has no lone surrogates.
PRINTED = st.text(st.characters(codec="utf-8"), max_size=200)


def fuzz(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


def answer(read: Callable[[], _T], names: str) -> _T | None:
    """What was read, or None where it was refused by a sentence with these words."""
    try:
        return read()
    except (DriverError, ValueError) as error:
        said = str(error)
    assert names in said
    return None


def whole(texts: dict[str, str]) -> str:
    return record(id="1") + record(**{"id": "2", **texts}) + record(id="3")


@fuzz(75)
@given(
    texts=st.fixed_dictionaries(
        dict.fromkeys(
            ("account", "qos", "reason", "required", "features", "comment", "admin_comment", "name"), TEXTS
        )
    )
)
@example(texts={"required": "bm1 \n bm2"})
@example(texts={"required": "r[0-1]n[08-09]"})
def test_no_free_text_of_a_job_is_more_than_that(texts: dict[str, str]) -> None:
    """Its neighbours are unharmed, and so are its own name, number and state."""
    first, job, last = read(whole(texts))
    assert (first.id, job.id, last.id) == ("1", "2", "3")
    assert job.name == texts.get("name", "job")
    assert job.state is first.state
    assert job.nodes == first.nodes


@fuzz(50)
@given(cut=st.integers(0, 2000), texts=st.fixed_dictionaries({"name": TEXTS}))
def test_jobs_cut_short_are_a_prefix_or_refused(cut: int, texts: dict[str, str]) -> None:
    """What cannot be told from a shorter queue is one that ends with a whole record."""
    output = whole(texts)
    jobs = read(output)
    found = answer(lambda: read(output[:cut]), "ends in the middle")
    assert found is None or found == jobs[: len(found)]


@fuzz(100)
@given(data=st.data())
def test_broken_fields_of_a_job_are_refused_with_a_sentence(data: st.DataObject) -> None:
    """Never another error than the one that makes us ask in another way."""
    keys = (
        "id",
        "raw",
        "state",
        "nodes",
        "num_nodes",
        "cpus",
        "tres",
        "memory",
        "priority",
        "submit",
        "start",
        "end",
        "limit",
        "restarts",
        "expected",
        "deadline",
    )
    key = data.draw(st.sampled_from(keys))
    output = whole({key: data.draw(TEXTS)})
    jobs = answer(lambda: read(output), "squeue")
    assert all(isinstance(job, Job) for job in jobs or ())


@fuzz(75)
@given(comment=TEXTS)
@example(comment="c Reason=backfill: ours [root@1]")
@example(comment="c\n\nState=DOWN")
def test_a_nodes_comment_is_no_field_of_it(comment: str) -> None:
    """With a reason before it or without."""
    for signed in ("", " Reason=disk [root@1795232589]"):
        lines = [f"{BM1}{signed} Comment={comment} Extra={comment}", VN1, ""]
        if any(line.startswith("NodeName=") for line in comment.split("\n")[1:]):
            continue  # only an administrator can write this, and JSON keeps it apart
        nodes = read_nodes("\n".join(lines))
        plain = read_nodes(f"{BM1}{signed}\n{VN1}\n")
        assert nodes == plain


@fuzz(75)
@given(at=st.integers(0, 1500), to=st.integers(0, 20), piece=TEXTS)
def test_broken_nodes_are_read_or_refused(at: int, to: int, piece: str) -> None:
    """A piece put in, or in the place of others, or the rest missing."""
    output = f"{BM1}\nNode vn9 not found\n{VN1}\n"
    for text in (output[:at] + piece + output[at + to :], output[:at]):
        nodes = answer(partial(read_nodes, text), "scontrol") or {}
        assert all(isinstance(node, Node) for node in nodes.values())


@fuzz(50)
@given(at=st.integers(0, 400), to=st.integers(0, 20), piece=TEXTS)
def test_broken_reservations_are_read_or_refused(at: int, to: int, piece: str) -> None:
    """So are these."""
    output = WORKS[:at] + piece + WORKS[at + to :] + "\n"
    answer(lambda: read_reservations(output), "reservation")


VALUES = st.one_of(
    TEXTS,
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.sampled_from([float("inf"), float("nan"), 1e300, [], {}, [[]], {"set": True}]),
    st.fixed_dictionaries({"set": st.booleans(), "infinite": st.booleans(), "number": st.none()}),
)


@fuzz(100)
@given(key=st.sampled_from(sorted(OLD)), value=VALUES, newer=st.booleans())
def test_broken_json_is_read_or_refused(key: str, value: Any, newer: bool) -> None:
    """Any value in the place of any other, in the form of any release."""
    entry = new(OLD) if newer else dict(OLD)
    fields = sorted(NODE)
    broken_node = {**NODE, fields[len(key) % len(fields)]: value}
    document = {"jobs": [{**entry, key: value}], "nodes": [broken_node]}
    found = json.loads(json.dumps(document))
    answer(lambda: jobs_of(found, "squeue", 1000.0), "cannot read the job")
    answer(lambda: nodes_of(found, "scontrol"), "cannot read the node")


@fuzz(50)
@given(text=PRINTED)
@example(text="[" * 100_000)
def test_what_is_no_json_is_refused(text: str) -> None:
    """Cut short, empty, or a sentence of Slurm's."""
    answer(lambda: jobs_of(read_document(text, "squeue", "-"), "squeue", 1000.0), "squeue")


@fuzz(100)
@given(text=st.one_of(TEXTS, PRINTED))
def test_any_text_is_a_hostlist_or_none(text: str) -> None:
    """And of what a user typed it is one or a name that no node has."""
    names = answer(lambda: parse_hostlist(text), "hostlist") or ()
    assert len(set(names)) == len(names)
    assert isinstance(asked_hosts(text), tuple)


@fuzz(100)
@given(text=st.one_of(TEXTS, st.text(max_size=2000)))
def test_what_we_send_is_one_line_that_a_process_can_be_given(text: str) -> None:
    """No NUL, no line break, no half of a character; a reason comes back as it was sent."""
    for sent in (one_line(text), reason_text(text)):
        assert sent.isprintable()
        assert len(sent.encode()) < 10_000
    assert reason_text(reason_text(text)) == reason_text(text)


@fuzz(75)
@given(complaint=st.one_of(TEXTS, PRINTED), status=st.integers(-64, 255))
def test_any_complaint_is_one_sentence(complaint: str, status: int) -> None:
    """Whatever is in it."""
    error = meaning_of("job 5", "scontrol suspend 5", status, complaint)
    assert str(error).isprintable()
    assert len(str(error)) < 600
