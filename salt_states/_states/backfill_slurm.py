"""Salt's way to Slurm's configuration: `backfill slurm` writes it, tries it and takes it back.

The managed file (backfill.conf), the hooks and job_submit.lua have one owner, that transaction: a
state that wrote them as well would be refused by it, or would overwrite what it had tried.
"""

import json
import os
import subprocess

_NO = 1  # exit status: there is something to do


def applied(name, program="/opt/backfill/bin/backfill"):
    """The managed file is as the policy file `name` wants it, and Slurm has taken it."""
    return _hold(name, program, ("diff",), ("apply",), _differs)


def hooks_installed(name, program="/opt/backfill/bin/backfill"):
    """The hooks of the policy file `name` are installed, around those that the site has."""
    return _hold(name, program, ("hooks", "status"), ("hooks", "install"), _not_installed)


def _differs(seen):
    return seen["diff"]


def _not_installed(seen):
    if seen["installed"] and not seen["problems"]:
        return ""
    return "; ".join(seen["problems"]) or "not installed"


def _hold(policy, program, look, act, wrong):
    """Look first; act only where something is wrong, and say what."""
    told = {"name": policy, "result": True, "changes": {}, "comment": "as the policy file wants it"}
    try:
        todo = wrong(_ask(program, policy, look, (0, _NO)))
        if todo and __opts__["test"]:  # noqa: F821  Salt puts it there
            told |= {"result": None, "changes": {"slurm": todo}, "comment": "would be changed"}
        elif todo:
            done = _ask(program, policy, act, (0,))
            if act == ("apply",) and not done["diff"]:
                # It is made, and slurm.conf does not include it yet.
                told |= {"result": False, "comment": "; ".join(done["notes"])}
            else:
                told |= {"changes": {"slurm": done["diff"] or todo}, "comment": "Slurm has taken it"}
    except RuntimeError as error:
        told |= {"result": False, "comment": str(error)}
    return told


def _ask(program, policy, verb, fine):
    """What the command answers; RuntimeError with its own sentence where it cannot."""
    words = [program, "slurm", *verb, "--config", policy, "--json"]
    # The daemon's environment is its own: Salt's modules are not to be found there.
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environ)
    except OSError as error:
        raise RuntimeError(f"{program} cannot be run: {error.strerror}; install backfill") from error
    try:
        seen = json.loads(done.stdout)
    except ValueError:
        seen = None
    if done.returncode not in fine or not isinstance(seen, dict):
        raise RuntimeError(done.stderr.strip() or f"{' '.join(words)} ended with {done.returncode}")
    return seen
