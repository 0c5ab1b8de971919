"""`backfill completion SHELL`: prints the script that makes the shell complete our commands."""

from __future__ import annotations

import argparse

from backfill.ui.candidates import FILES
from backfill.ui.cli import COMPLETE
from backfill.ui.codes import OK

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="for which shell")
    parser.epilog = _ABOUT


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    print(script(args.shell), end="")
    return OK


def script(shell: str) -> str:
    """The script; it asks `backfill` itself at every key, so it never grows old."""
    return _SCRIPTS[shell].replace("@FILES@", FILES).replace("@COMPLETE@", COMPLETE)
