"""The word by which a job asks for machines of its own: read, written, and refused with a sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.core.model.cluster import MachineRequest
from backfill.core.model.company import Company
from backfill.core.model.job_machines import asked, parse, render, with_word_of, without_word, word_of
from backfill.core.model.refusals import Reason
from backfill.core.model.sentences import sentence

_NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True)
REQUESTS = st.builds(
    MachineRequest,
    per_node=st.integers(1, 64),
    cpus=st.none() | st.integers(1, 4096),
    memory_mb=st.none() | st.integers(1, 1 << 24),
    disk_gb=st.none() | st.integers(1, 1 << 24).map(lambda mb: mb / 1024),
    image=st.none() | _NAMES,
    network=st.none() | _NAMES,
    sriov=st.integers(0, 64),
    regions=st.lists(st.integers(0, 16).map(lambda n: 1 << n), max_size=16).map(tuple),
    company=st.sampled_from(Company),
    held=st.booleans(),
)


@given(REQUESTS, st.sampled_from(["{}", "my notes {}", "{} backfill: making", "a;{};b", "x|{}"]))
def test_what_is_written_is_read(request: MachineRequest, text: str) -> None:
    """Wherever it stands in somebody's text, between blanks or separators."""
    assert parse(text.format(render(request))) == request


def test_the_canonical_form() -> None:
    """Only what differs from a plain request, the keys in their order."""
    full = MachineRequest(2, 4, 2048, 20.0, "mpi", "lan", 1, (256, 128))
    word = "backfill-vm:per_node=2,cpus=4,mem=2048,disk=20,image=mpi,network=lan,sriov=1,ivshmem=256+128"
    assert render(full) == word
    assert render(MachineRequest()) == "backfill-vm"
    assert parse("backfill-vm:mem=2G,disk=512M") == MachineRequest(memory_mb=2048, disk_gb=0.5)


@pytest.mark.parametrize("text", ["", "a comment", "my-backfill-vm", "backfill-vms", "see backfill-vm!"])
def test_other_words_ask_for_nothing(text: str) -> None:
    """Whatever looks alike is none."""
    assert parse(text) is None


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("cpu=4", "unknown key 'cpu': use per_node, cpus, mem, disk, image, network, sriov, ivshmem, place"),
        ("cpus", "says cpus='': use a number from 1 to 4096"),
        ("cpus=0", "says cpus='0': use a number from 1 to 4096"),
        ("cpus=-3", "says cpus='-3'"),
        ("cpus=٤", "says cpus='٤'"),
        ("per_node=65", "use a number from 1 to 64"),
        ("mem=1.5G", "says mem='1.5G': use a size such as 2048 (MB) or 2G"),
        ("mem=99999999999999999999999", "says mem='99999999999999999999999'"),
        ("mem=1K", "says mem='1K'"),
        ("disk=x", "use a size such as 20 (GB) or 500M"),
        ("image=../etc/passwd", "use a name of letters, digits and . _ -"),
        ("image=$(reboot)", "use a name of letters, digits and . _ -"),
        ("place=here", "place='here': use together or spread"),
        ("ivshmem=100", "use sizes that are powers of two such as 256+256 (MB), 16 at most"),
        ("ivshmem=" + "+".join(["1"] * 17), "16 at most"),
        ("cpus=1,cpus=2", "says cpus more than once"),
        ("image=\x1b[31m", "says image='?[31m'"),
    ],
)
def test_nonsense_gets_one_sentence(word: str, said: str) -> None:
    """It names the key, what was given, and what may be."""
    found = parse(f"backfill-vm:{word}")
    assert isinstance(found, Reason)
    assert said in sentence(found)


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    """Users write what they like."""
    for one in (text, f"backfill-vm:{text}"):
        found = parse(one)
        if isinstance(found, MachineRequest):
            assert parse(render(found)) == found


def test_two_different_words_are_one_too_many() -> None:
    """Which of them is meant is not guessed; the same twice is one."""
    twice = parse("backfill-vm:cpus=1 backfill-vm:cpus=2")
    assert isinstance(twice, Reason)
    assert "backfill-vm more than once" in sentence(twice)
    assert parse("backfill-vm:cpus=1 backfill-vm:cpus=1") == MachineRequest(cpus=1)


def test_the_most_trusted_text_counts() -> None:
    """What its owner writes later into his comment changes nothing."""
    ours = "backfill: made backfill-vm:cpus=2"
    assert asked(ours, "backfill-vm:cpus=64") == (MachineRequest(cpus=2), None)
    assert asked("", "hello", "backfill-vm") == (MachineRequest(), None)
    assert asked("", "backfill-vm:held=1,at=vn1,run=2,cpus=3") == (MachineRequest(cpus=3), None)
    assert asked() == (None, None)
    wrong, fault = asked("backfill-vm:x=1", "backfill-vm")
    assert wrong is None
    assert fault is not None


def test_the_word_is_taken_out_and_found() -> None:
    """AdminComment has our notices beside it."""
    text = "backfill: its machines boot backfill-vm:cpus=2"
    assert without_word(text) == "backfill: its machines boot"
    assert word_of(text) == "backfill-vm:cpus=2"
    assert with_word_of(f"billed {text}", "backfill: x backfill-vm:at=vn1") == (
        "billed backfill: its machines boot backfill-vm:at=vn1"
    )
    assert (without_word("plain"), word_of("plain")) == ("plain", "")
