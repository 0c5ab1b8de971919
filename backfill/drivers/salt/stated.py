"""What a node's states come to: files for its seed, and the list by which its guest checks itself.

Both are made of the low state that Salt rendered for this very node; the list is read by
`backfill/lab/guest/stated.c`. It is complete: a state whose outcome cannot be seen from outside
stands in it as one that only a run proves, so that a tree that grows is never believed by half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

PLACE = "/etc/backfill/stated"
# Proven by a credential in each direction; a checksum here would be one more trace of the key.
_PROVEN_ELSEWHERE = "/etc/munge/munge.key"
# Where the mark of a run that succeeded is: no part of what the states come to.
_MARKS = "/run/"

State = Mapping[str, object]


def whole_files(states: Sequence[State]) -> dict[str, bytes]:
    """The files that the states write out of nothing but their own text, by path."""
    texts = {_name(s): _text(s) for s in _lasting(states) if _kind(s) == "file.managed"}
    return {path: text for path, text in texts.items() if text}


def stated(states: Sequence[State]) -> bytes:
    """The list for the guest."""
    lines = (_SEEN.get(_kind(state), _unseen)(state) for state in _lasting(states))
    return b"".join(lines) + b"end\n"


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
    return f"mount {state['device']} {_name(state)}\n".encode()


def _group(state: State) -> bytes:
    return f"group {state['gid']} {_name(state)}\n".encode() if "gid" in state else _unseen(state)


def _user(state: State) -> bytes:
    wanted = ("uid", "gid", "home", "shell")
    if not state.keys() >= set(wanted):
        return _unseen(state)
    return f"user {' '.join(str(state[key]) for key in wanted)} {_name(state)}\n".encode()


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


def _text(state: State) -> bytes:
    """As Salt writes it: one line break at the end. Empty where the text comes from elsewhere."""
    text = state.get("contents")
    return str(text).rstrip("\n").encode() + b"\n" if text else b""
