"""Renders a node's states to files for its seed, and to the list by which its guest checks itself.

Both are made of the low state that Salt rendered for this very node; the list is read by
`backfill/lab/guest/stated.c`. It is complete: a state whose outcome cannot be seen from outside
stands in it as one that only a run proves, so that a tree that grows is never believed by half.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence

from backfill.ports.provider import SeedFile

PLACE = "/etc/backfill/stated"
# Proven by a credential in each direction; a checksum here would be one more trace of the key.
_PROVEN_ELSEWHERE = "/etc/munge/munge.key"
# Where the mark of a run that succeeded is: no part of what the states come to.
_MARKS = "/run/"

State = Mapping[str, object]

# What any state may say without changing what it comes to.
_FRAME = {
    "state",
    "fun",
    "name",
    "order",
    "failhard",
    "require",
    "require_in",
    "watch",
    "watch_in",
    "onchanges",
    "onchanges_in",
}
# Beside that, what of a kind the guest compares, or what has no outcome of its own. A state that
# says anything else (`unless`, `groups`, `recurse`, a template) is proven by a run only.
_UNDERSTOOD = {
    "file.managed": "contents mode user group makedirs replace show_changes backup",
    "file.decode": "contents_pillar checksum",
    "file.directory": "mode user group makedirs",
    "mount.mounted": "device fstype opts persist mkmnt mount extra_mount_invisible_options",
    "group.present": "gid",
    "user.present": "uid gid home shell createhome",
    "cmd.run": "onchanges shell cwd env",
    "test.nop": "",
}


def whole_files(states: Sequence[State]) -> dict[str, SeedFile]:
    """Return the files that the states write out of nothing but their own text, by path."""
    found = {_name(s): SeedFile(_text(s), _mode(s)) for s in _lasting(states) if _kind(s) == "file.managed"}
    return {path: file for path, file in found.items() if file.content}


def stated(states: Sequence[State], doubt: str | None = None) -> bytes:
    """Write the list for the guest. `doubt`: why the states may be others where they are run."""
    lines = [_line(state) for state in _lasting(states)]
    if doubt:
        lines.append(f"run {doubt}\n".encode())
    # All that the states say, also what nobody compares: a tree in which that was changed is run.
    whole = json.dumps(_lasting(states), sort_keys=True)
    return b"".join(lines) + f"end\nof {hashlib.sha256(whole.encode()).hexdigest()}\n".encode()


def _line(state: State) -> bytes:
    kind = _kind(state)
    words = {word for word in state if not word.startswith("__")}  # the others are Salt's own
    if words - _FRAME - set(_UNDERSTOOD.get(kind, "").split()):
        return _unseen(state)
    return _SEEN.get(kind, _unseen)(state)


def _lasting(states: Sequence[State]) -> list[State]:
    return [state for state in states if not _name(state).startswith(_MARKS)]


# --- by kind of state: a line, after that a file's text; empty for what comes to nothing ---------


def _file(state: State) -> bytes:
    if text := _text(state):
        return f"file {_owned(state)} {len(text)} {_name(state)}\n".encode() + text + b"\n"
    if state.get("replace") is False:
        return f"file {_owned(state)} - {_name(state)}\n".encode()
    return _unseen(state)


def _decoded(state: State) -> bytes:
    return b"" if _name(state) == _PROVEN_ELSEWHERE else _unseen(state)


def _folder(state: State) -> bytes:
    return f"folder {_owned(state)} {_name(state)}\n".encode()


def _mount(state: State) -> bytes:
    if not state.get("mount", True):
        return _unseen(state)
    # Of the options only this one can be told for every file system, and matters to every job.
    given = state.get("opts", "")
    options = given if isinstance(given, list) else str(given).split(",")
    way = "ro" if "ro" in options else "rw"
    return f"mount {state['device']} {way} {_name(state)}\n".encode()


def _group(state: State) -> bytes:
    if not isinstance(state.get("gid"), int):
        return _unseen(state)
    return f"group {state['gid']} {_name(state)}\n".encode()


def _user(state: State) -> bytes:
    wanted = ("uid", "gid", "home", "shell")
    numbers = (state.get("uid"), state.get("gid"))
    if not state.keys() >= set(wanted) or not all(isinstance(n, int) for n in numbers):
        return _unseen(state)
    home = f"folder - - - {state['home']}\n" if state.get("createhome", True) else ""
    line = f"user {' '.join(str(state[key]) for key in wanted)} {_name(state)}\n"
    return (line + home).encode()


def _command(state: State) -> bytes:
    # It does nothing unless something else has changed, and that stands in the list itself.
    return b"" if state.get("onchanges") else _unseen(state)


def _nothing(state: State) -> bytes:
    del state
    return b""


def _unseen(state: State) -> bytes:
    return f"run {state['__id__']}\n".encode()


_SEEN: dict[str, Callable[[State], bytes]] = {
    "file.managed": _file,
    "file.decode": _decoded,
    "file.directory": _folder,
    "mount.mounted": _mount,
    "group.present": _group,
    "user.present": _user,
    "cmd.run": _command,
    "test.nop": _nothing,
}


def _kind(state: State) -> str:
    return f"{state['state']}.{state['fun']}"


def _name(state: State) -> str:
    return str(state.get("name", state["__id__"]))


def _owned(state: State) -> str:
    return " ".join(str(state.get(key, "-")) for key in ("mode", "user", "group"))


# What Salt gives a new file whose state names no mode: its minions have the usual umask of 022. A stricter
# one would stay, since no run changes a mode that no state names, and users read such files.
_USUAL_MODE = 0o644
# Where a mode cannot be read, and until a run has seen to it.
_ROOTS_MODE = 0o400


def _mode(state: State) -> int:
    """Return whom a state lets read its file. Bits that let programs run as others are left to Salt."""
    mode = state.get("mode")
    if mode is None:
        return _USUAL_MODE
    # As Salt does it: of a number its decimal digits count.
    return int(str(mode), 8) & 0o777 if re.fullmatch("[0-7]{3,5}", str(mode)) else _ROOTS_MODE


def _text(state: State) -> bytes:
    """As Salt writes it: one line break at the end. Empty where the text comes from elsewhere."""
    text = state.get("contents")
    return str(text).rstrip("\n").encode() + b"\n" if text else b""
