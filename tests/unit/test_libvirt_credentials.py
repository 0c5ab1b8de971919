"""Credentials of munge to and from a guest: no job can read them there, and Slurm takes none of them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import backfill.lab
from backfill.drivers.libvirt.guest import agent
from tests.unit.test_libvirt_agent import Agent

_GUEST = Path(backfill.lab.__file__).parent / "guest"
REPORT = "correction 0.1\nself 1 200 10.0.1.1,\nmunge-out ok 0.01 MUNGE:theirs:\nnow 1700000000.0\n"
REQUEST = agent.ProofRequest(
    1_700_000_000.0, "MUNGE:ours:", True, key_place="/etc/slurm/slurm.jwks", key=b"secret\nkey"
)
# A munge that understands all that begins as credentials do, as made by user 990.
_MUNGE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
enum { EMUNGE_SUCCESS, EMUNGE_NO_MEMORY, EMUNGE_BAD, EMUNGE_CRED_REPLAYED = 17 };
enum { MUNGE_OPT_TTL, MUNGE_OPT_UID_RESTRICTION };
#define MUNGE_UID_ANY ((uid_t)-1)
typedef int munge_err_t;
typedef struct { int set[2]; } *munge_ctx_t;
static munge_ctx_t munge_ctx_create(void) {
    munge_ctx_t made = malloc(sizeof *made);
    made->set[0] = made->set[1] = -1;
    return made;
}
static int munge_ctx_set(munge_ctx_t how, int what, int value) { how->set[what] = value; return 0; }
static int munge_decode(const char *text, munge_ctx_t how, void **to, int *length, uid_t *uid, gid_t *gid) {
    (void)how, (void)to, (void)length, (void)gid;
    if (uid) *uid = 990;
    return strcmp(text, "MUNGE:ours:") ? EMUNGE_BAD : EMUNGE_CRED_REPLAYED;
}
static int munge_encode(char **text, munge_ctx_t how, const void *payload, int length) {
    int ttl = how ? how->set[0] : 0, reader = how ? how->set[1] : -1;
    return asprintf(text, "MUNGE:%.*s,%d,%d:", length, (const char *)payload, ttl, reader) < 0;
}
static const char *munge_strerror(int e) { return e == EMUNGE_BAD ? "not understood" : "?"; }
"""


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
    """The guest's proving program with the munge above, and without setting this machine's clock."""
    folder = tmp_path_factory.mktemp("prove")
    (folder / "munge.h").write_text(_MUNGE)
    text = (_GUEST / "prove.c").read_text()
    text = text.replace("clock_settime(CLOCK_REALTIME, &t)", "(t.tv_sec < 0)")
    assert "is_new ? 5.0 : 0" in text  # here is no slurmd that it could wait for
    text = text.replace("is_new ? 5.0 : 0", "0")
    (folder / "prove.c").write_text(text)
    argv = ["gcc", "-D_GNU_SOURCE", "-Wall", "-Werror", "-I", str(folder), "-I", str(_GUEST)]
    subprocess.run([*argv, "-o", str(folder / "prove"), str(folder / "prove.c"), "-lm"], check=True)
    return folder / "prove"


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
