"""Exit statuses of `backfill`, after sysexits.h where it has one."""

from __future__ import annotations

OK = 0
NO = 1  # the answer is no, or what was asked for failed
USAGE = 2
BAD_DATA = 65
UNAVAILABLE = 69
NO_PERMISSION = 77
BAD_CONFIG = 78
INTERRUPTED = 130

# Where the policy file is when nobody says so.
DEFAULT_POLICY = "/etc/backfill/policy.yaml"

MEANINGS = (
    (OK, "done; the answer is yes"),
    (NO, "the answer is no, or what was asked for failed"),
    (USAGE, "the command line cannot be understood"),
    (BAD_DATA, "a policy file, trace or scenario has mistakes, or a file cannot be written"),
    (UNAVAILABLE, "no daemon, Slurm or hypervisor answers, or the daemon cannot go on"),
    (NO_PERMISSION, "you may not do that"),
    (BAD_CONFIG, "the daemon refuses its policy file"),
    (INTERRUPTED, "interrupted, or nobody reads the output any more"),
)
