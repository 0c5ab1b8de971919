"""Programs of guests, compiled so that they can be tried on this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import backfill.lab

GUEST = Path(backfill.lab.__file__).parent / "guest"
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


def proving_program(folder: Path, *changes: tuple[str, str]) -> Path:
    """Compile the proving program with the munge above; it does not set this machine's clock.

    `changes`: what else stands in its text, and what takes its place.
    """
    (folder / "munge.h").write_text(_MUNGE)
    here = (
        ("clock_settime(CLOCK_REALTIME, &t)", "(t.tv_sec < 0)"),
        ("is_new ? 5.0 : 0", "0"),  # here is no slurmd that it could wait for
    )
    text = (GUEST / "prove.c").read_text()
    for old, new in (*here, *changes):
        assert old in text
        text = text.replace(old, new)
    (folder / "prove.c").write_text(text)
    argv = ["gcc", "-D_GNU_SOURCE", "-Wall", "-Werror", "-I", str(folder), "-I", str(GUEST)]
    subprocess.run([*argv, "-o", str(folder / "prove"), str(folder / "prove.c"), "-lm"], check=True)
    return folder / "prove"
