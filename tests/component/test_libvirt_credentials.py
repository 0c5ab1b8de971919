"""Credentials of munge to and from a guest: no job can read them there, and Slurm takes none of them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from backfill.drivers.libvirt.guest import agent
from tests.component.guest_programs import proving_program
from tests.component.test_libvirt_agent import Agent

REPORT = "correction 0.1\nself 1 200 10.0.1.1,\nmunge-out ok 0.01 MUNGE:theirs:\nnow 1700000000.0\n"
REQUEST = agent.ProofRequest(
    1_700_000_000.0, "MUNGE:ours:", True, key_place="/etc/slurm/slurm.jwks", key=b"secret\nkey"
)


class OlderAgent(Agent):
    """The agent of a guest whose proving program knows `credential=TEXT` alone."""

    def __call__(self, command: str, arguments: dict[str, Any]) -> Any:
        status = super().__call__(command, arguments)
        if command == "guest-exec":
            self.polls_left = 1
            self.code = 2 if "credential" in arguments["arg"] else 0
        return status


@pytest.fixture(scope="module")
def prove(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return proving_program(tmp_path_factory.mktemp("prove"))


def said(prove: Path, given: bytes, *words: str) -> list[str]:
    """What the program says of munge and of the key, without the times."""
    argv = [str(prove), "1700000000.0", *words]
    lines = subprocess.run(argv, input=given, capture_output=True, check=True).stdout.decode().splitlines()
    found = [line.split(" ", 3) for line in lines if line.startswith(("munge", "key"))]
    return [f"{name} {verdict} {text}" for name, verdict, _, text in found]


def test_a_credential_is_never_an_argument() -> None:
    """Every job in the guest could read it there, and speak to Slurm as we do."""
    guest = Agent(REPORT)
    _, theirs = agent.prove(guest, "vn1", REQUEST, 5.0)
    assert theirs == "MUNGE:theirs:"
    ((path, words),) = guest.commands
    assert (path, words[1:]) == (agent.PROVE_PROGRAM, ["credential", "key=/etc/slurm/slurm.jwks", "register"])
    assert not [word for word in words if "MUNGE:" in word]
    assert guest.given == [b"MUNGE:ours:\nsecret\nkey"]


def test_a_guest_of_an_older_image_proves_itself_still() -> None:
    """What stood still while backfill was upgraded comes back."""
    guest = OlderAgent(REPORT)
    _, theirs = agent.prove(guest, "vn1", REQUEST, 5.0)
    assert theirs == "MUNGE:theirs:"
    assert [words[1] for _, words in guest.commands] == ["credential", "credential=MUNGE:ours:"]
    assert guest.given == [b"MUNGE:ours:\nsecret\nkey", b"secret\nkey"]


def test_a_program_that_knows_no_word_is_not_asked_for_ever() -> None:
    """Twice where a credential was told, and else once."""
    guest = Agent("", "'salt' is no check that I know", 2)
    for request, times in ((REQUEST, 2), (agent.ProofRequest(1_700_000_000.0, "", True), 1)):
        guest.commands.clear()
        with pytest.raises(agent.UsageError, match="no check that I know"):
            agent.prove(guest, "vn1", request, 5.0)
        assert len(guest.commands) == times


def test_the_guest_reads_the_credential_and_then_the_key(prove: Path, tmp_path: Path) -> None:
    """Whatever else a key holds; the credential alone will do."""
    place = tmp_path / "slurm.jwks"
    munge = ["munge-in ok ", "munge-out ok MUNGE:backfill-proof,60,990:"]
    assert said(prove, b"MUNGE:ours:\ntwo\nlines\n", "credential", f"key={place}") == [
        "key ok it is new",
        *munge,
    ]
    assert place.read_bytes() == b"two\nlines\n"
    assert said(prove, b"MUNGE:ours:\n", "credential") == munge
    assert said(prove, b"", "credential=MUNGE:ours:") == munge


def test_a_credential_that_is_not_understood_is_answered_all_the_same(prove: Path) -> None:
    """Nobody knows who asked, so the answer is for all; the two directions are told apart."""
    assert said(prove, b"MUNGE:strange:\n", "credential") == [
        "munge-in no not understood",
        "munge-out ok MUNGE:backfill-proof,60,-1:",
    ]


@pytest.mark.parametrize("given", [b"", b"MUNGE:cut off", b"M" * 5000])
def test_what_is_no_line_is_no_credential(prove: Path, given: bytes) -> None:
    """Nothing is proven then, and the clock is left alone."""
    done = subprocess.run(
        [prove, "1700000000.0", "credential"], input=given, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"backfill-prove: standard input brings no credential\n"
