"""`backfill completion SHELL`, and the candidates for which every completion script asks us."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from backfill.ui.client import DEFAULT_SOCKET, AskError, Client
from backfill.ui.command_line import COMMANDS, COMPLETE, build_parser, command_of, command_parsers
from backfill.ui.parser import OK

_ABOUT = """\
to try it:    source <(backfill completion bash)
to keep it:   backfill completion bash > /etc/bash_completion.d/backfill
              backfill completion zsh  > "${fpath[1]}/_backfill"
              backfill completion fish > ~/.config/fish/completions/backfill.fish"""

_BASH = """\
# bash completion of backfill
_backfill() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            @FILES@) compopt -o default ;;
            *) COMPREPLY+=("${line%%$'\\t'*}") ;;
        esac
    done < <("${COMP_WORDS[0]}" @COMPLETE@ "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _backfill backfill
"""

_ZSH = """\
#compdef backfill
# zsh completion of backfill
_backfill() {
    local line
    local -a found
    for line in "${(@f)$("${words[1]}" @COMPLETE@ "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        if [[ $line == @FILES@ ]]; then
            _files
            return
        fi
        [[ -n $line ]] && found+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
    done
    _describe backfill found
}
if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then
    _backfill "$@"
else
    compdef _backfill backfill
fi
"""

_FISH = """\
# fish completion of backfill
function __backfill_candidates
    set -l before (commandline -opc)
    $before[1] @COMPLETE@ $before[2..-1] (commandline -ct) 2>/dev/null
end
complete -c backfill -f -a '(__backfill_candidates | string match -v @FILES@)'
complete -c backfill -n '__backfill_candidates | string match -q @FILES@' -F
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="for which shell")
    parser.epilog = _ABOUT


def run_completion(args: argparse.Namespace) -> int:
    """Print the script."""
    print(script(args.shell), end="")
    return OK


def script(shell: str) -> str:
    """Return the script; it asks `backfill` itself at every key, so it never grows old."""
    return _SCRIPTS[shell].replace("@FILES@", FILES).replace("@COMPLETE@", COMPLETE)


# In place of candidates: the shell completes names of files itself.
FILES = ":files"
# A key that was pressed waits for this.
_PATIENCE_S = 1.0
_OF_FILES = ("FILE", "PATH", "OUT", "FILE.swf", "trace", "scenario")


@dataclass(frozen=True, slots=True)
class Line:
    """The complete words before the one that is being typed."""

    words: tuple[str, ...]

    def value_of(self, option: str) -> str:
        """Return the word after `option`, or an empty text."""
        if option in self.words[:-1]:
            return self.words[self.words.index(option) + 1]
        return ""


def candidates(typed: Sequence[str]) -> list[str]:
    """`typed`: all words after `backfill`, the last one unfinished or empty.

    Each candidate is `word` or `word<TAB>what it is`; or the only one is FILES.
    """
    words = [w for w in typed if w != "="]  # bash takes `--name=lab` for three words
    current = words[-1] if words else ""
    line = Line(tuple(words[:-1]))
    command = command_of(line.words)
    if command is None:
        if current.startswith("-"):
            return _matching(current, _options(build_parser()))
        return _matching(current, ((c.name, c.help) for c in COMMANDS))
    parser = command_parsers(build_parser([command]))[command.name]
    rest = list(line.words[line.words.index(command.name) + 1 :])
    if "--" in rest:
        return [FILES]
    expected, place, parser = _walk(parser, rest)
    if expected is None and current.startswith("-"):
        return _matching(current, _options(parser))
    if expected is None:
        below = command_parsers(parser)
        if below:
            return _matching(current, ((name, _about(p)) for name, p in below.items()))
        expected = _positional(parser, place)
    return _values(expected, current, line) if expected is not None else []


def _walk(
    parser: argparse.ArgumentParser, words: list[str]
) -> tuple[argparse.Action | None, int, argparse.ArgumentParser]:
    """Find where the line has arrived: the option that wants a value, or how many words were given."""
    place = 0
    wanting: argparse.Action | None = None
    for word in words:
        if wanting is not None:
            wanting = None
        elif word.startswith("-"):
            wanting = _wanting(parser, word)
        elif word in (below := command_parsers(parser)):
            parser, place = below[word], 0
        else:
            place += 1
    return wanting, place, parser


def _wanting(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    for action in parser._actions:
        if word in action.option_strings and action.nargs != 0:
            return action
    return None


def _positional(parser: argparse.ArgumentParser, place: int) -> argparse.Action | None:
    """Return the positional argument after `place` others; the last one may go on."""
    actions = [a for a in parser._actions if not a.option_strings]
    if not actions:
        return None
    if place < len(actions):
        return actions[place]
    return actions[-1] if actions[-1].nargs in ("*", "+") else None


def _options(parser: argparse.ArgumentParser) -> Iterable[tuple[str, str]]:
    for action in parser._actions:
        for option in action.option_strings:
            if option.startswith("--"):
                yield option, "" if action.help in (None, argparse.SUPPRESS) else str(action.help)


def _about(parser: argparse.ArgumentParser) -> str:
    return parser.description or ""


def _values(action: argparse.Action, current: str, line: Line) -> list[str]:
    if action.choices is not None:
        return _matching(current, ((str(c), "") for c in action.choices))
    kind = str(action.metavar or action.dest)
    if kind in _OF_FILES or action.type is Path:
        return [FILES]
    source = _SOURCES.get(kind)
    if source is None:
        return []
    try:
        return _matching(current, source(line))
    except (AskError, OSError, LookupError, ValueError):
        return []  # no daemon, no lab: nothing to propose, and nothing to say about it


def _matching(current: str, words: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{w}\t{text}" if text else w for w, text in words if w.startswith(current)]


# --- names that only the daemon or a lab knows ---


def _client(line: Line) -> Client:
    path = line.value_of("--socket") or os.environ.get("BACKFILL_SOCKET") or DEFAULT_SOCKET
    return Client(path, _PATIENCE_S)


def _nodes(line: Line) -> list[tuple[str, str]]:
    return [(n["name"], f"node, {n['phase']}") for n in _client(line).ask("nodes")["nodes"]]


def _hosts(line: Line) -> list[tuple[str, str]]:
    return [(h["name"], "host") for h in _client(line).ask("hosts")["hosts"]]


def _places(line: Line) -> list[tuple[str, str]]:
    return [*_nodes(line), *_hosts(line)]


def _subjects(line: Line) -> list[tuple[str, str]]:
    nodes = _client(line).ask("nodes")["nodes"]
    ids = {j: n["name"] for n in nodes for j in (*n["jobs"], *(h["id"] for h in n["held"]))}
    return [*_places(line), *((j, f"job on {node}") for j, node in sorted(ids.items()))]


def _labs(line: Line) -> list[tuple[str, str]]:
    from backfill.ui.commands.lab import lab_names

    return [(name, "lab") for name in lab_names()]


def _machines(line: Line) -> list[tuple[str, str]]:
    from backfill.ui.commands.lab import machine_names

    return [(name, "machine") for name in machine_names(line.value_of("--name") or "lab")]


_SOURCES: dict[str, Callable[[Line], list[tuple[str, str]]]] = {
    "NODE": _nodes,
    "HOST|NODE": _places,
    "SUBJECT": _subjects,
    "NAME": _labs,
    "MACHINE": _machines,
}
