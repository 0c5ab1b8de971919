"""The script for the hosts: what cannot be done from the controller, to be run there by root, and undone."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

from backfill.ui.setup.wishes import Wishes

_SCRIPT = """#!/bin/sh
# By `backfill setup`, for root on each host: sh hosts.sh, or sh hosts.sh --undo. It may be run again.
set -eu
CONF={conf}
KEPT=/var/lib/backfill-host
WEIGHT={weight}
GUESTS=/etc/systemd/system/libvirt-guests.service
umask 077  # qemu.conf may hold passwords
# It brings its own undoing along, for a day on which the controller's copy is gone.
mkdir -p "$KEPT"
chmod 700 "$KEPT"
cat >"$KEPT/undo.sh" <<'END'
{undo}END
if [ "${{1:-}}" = --undo ]; then exec sh "$KEPT/undo.sh"; fi
sum() {{ sha256sum <"$1"; }}
# Keep a file as it was before the first run.
keep() {{
    kept="$KEPT/$(echo "$1" | tr / _)"
    if [ ! -e "$kept/path" ]; then
        mkdir -p "$kept"
        [ ! -e "$1" ] || cp -p "$1" "$kept/file"
        echo "$1" >"$kept/path"
    fi
}}
# Lay what comes from standard input beside a file that has another content: beside what a link leads to.
# All is laid before anything is changed, so that a file that cannot be written leaves nothing half done.
lay() {{
    cat >"$KEPT/wanted"
    to=$(readlink -f "$1") || to=$1
    if [ -e "$to" ] && [ "$(sum "$to")" = "$(sum "$KEPT/wanted")" ]; then return; fi
    echo "$to" >>"$KEPT/laid"
    beside "$to" 2>/dev/null && return
    echo "cannot write $to; nothing was changed: let root write it, or copy $KEPT/wanted there yourself" >&2
    exit 1
}}
beside() {{
    cat "$KEPT/wanted" >"$1.backfill-new" || return
    if [ ! -e "$1" ]; then chmod 644 "$1.backfill-new"; return; fi  # users read it, whatever our umask
    chmod --reference="$1" "$1.backfill-new" && chown --reference="$1" "$1.backfill-new"
}}
clear_away() {{
    while read -r to; do rm -f "$to.backfill-new"; done <"$KEPT/laid"
    : >"$KEPT/laid"
}}
: >>"$KEPT/laid"
clear_away  # what a run that was killed has left
trap clear_away EXIT
[ -d {directory} ] || {{ echo "{directory} is not there: mount the shared directory" >&2; exit 1; }}
ip link show {bridge} >/dev/null || {{ echo "there is no bridge {bridge}" >&2; exit 1; }}
# A guest's disk is not taken from QEMU's user when it leaves for another host.
if [ -e /etc/libvirt/qemu.conf ]; then
    {{ grep -v '^ *remember_owner *=' /etc/libvirt/qemu.conf || true; echo 'remember_owner = 0'; }} |
        lay /etc/libvirt/qemu.conf
fi
# A host without a copy of slurm.conf is told by slurmctld.
if [ -e "$CONF/slurm.conf" ]; then
{copies}
fi
# Guests give way to whatever the host itself runs.
keep "$WEIGHT"
systemctl set-property machine.slice CPUWeight=idle 2>/dev/null || true
[ ! -e "$WEIGHT" ] || sum "$WEIGHT" >>"$kept/ours"
# At a shutdown it would save guests where only a person gets them back from. Stopping it does that at once.
if [ ! -f "$GUESTS" ]; then
    keep "$GUESTS"
    systemctl mask libvirt-guests.service 2>/dev/null || true
    [ ! -e "$GUESTS" ] || sum "$GUESTS" >>"$kept/ours"
fi
while read -r to; do
    keep "$to"
    sum "$to.backfill-new" >>"$kept/ours"  # by which undoing tells that nobody has changed it since
    : >"$KEPT/changed"  # not forgotten where this is killed before the restart
    mv -f "$to.backfill-new" "$to"
done <"$KEPT/laid"
rm -f "$KEPT/wanted"
if [ -e "$KEPT/changed" ]; then
    {restart}
    rm "$KEPT/changed"
fi
"""
_RESTART = """systemctl try-restart libvirtd.service virtqemud.service 2>/dev/null || true
    systemctl try-restart slurmd.service 2>/dev/null || true"""
# Where systemd keeps the property that is set below.
_WEIGHT = "/etc/systemd/system.control/machine.slice.d/50-CPUWeight.conf"
_UNDO = """#!/bin/sh
# By `backfill setup`: this host as it was before, apart from what somebody has changed since.
set -eu
KEPT=/var/lib/backfill-host
left=
sum() {{ sha256sum <"$1"; }}
same() {{ [ -e "$2" ] && [ "$(sum "$1")" = "$(sum "$2")" ]; }}
included() {{
    grep -Eqis "^[[:space:]]*include[[:space:]]+(.*/)?${{1##*/}}[[:space:]]*(#.*)?$" {conf}/slurm.conf
}}
# Take back one file, by what is kept of it.
take_back() {{
    to=$(cat "$1/path") why=
    if [ ! -e "$to" ] || same "$to" "$1/file"; then
        :  # somebody has removed it, or put it back
    elif ! grep -qxF "$(sum "$to")" "$1/ours" 2>/dev/null; then
        why="somebody has changed it since"
    elif [ -e "$1/file" ]; then
        {{ cp -p "$1/file" "$to.backfill-new" && mv "$to.backfill-new" "$to"; }} || why="it cannot be written"
    elif included "$to"; then
        why="slurm.conf includes it"
    else
        rm "$to" || why="it cannot be removed"
    fi
    if [ -z "$why" ]; then rm -r "$1"; return; fi
    echo "$to stays: $why" >&2
    left=yes
}}
# What was made goes last: a slurm.conf that stays may include it.
for kept in "$KEPT"/*/; do
    if [ -e "$kept/path" ] && [ -e "$kept/file" ]; then take_back "$kept"; fi
done
for kept in "$KEPT"/*/; do
    if [ -e "$kept/path" ] && [ ! -e "$kept/file" ]; then take_back "$kept"; fi
done
rmdir {weight_folder} 2>/dev/null || true
systemctl daemon-reload 2>/dev/null || true
{restart}
if [ -n "$left" ]; then
    echo "remove what setup added to them by hand (originals: $KEPT/*/file), then rm -r $KEPT" >&2
    exit 1
fi
rm -r "$KEPT"
"""


def host_script(wishes: Wishes, texts: Mapping[str, str], conf: str) -> str:
    """Return the script; `texts` are the controller's files of Slurm, by name."""
    copies = []
    # slurm.conf last: what it includes is there before.
    for name, text in texts.items():
        data = base64.encodebytes(text.encode("utf-8", "surrogateescape")).decode()
        copies.append(f"    base64 -d <<'END' | lay \"$CONF/{name}\"\n{data}END")
    undo = _UNDO.format(conf=conf, weight_folder=str(Path(_WEIGHT).parent), restart=_RESTART)
    return _SCRIPT.format(
        conf=conf,
        weight=_WEIGHT,
        directory=wishes.directory,
        bridge=wishes.bridge,
        copies="\n".join(copies),
        undo=undo,
        restart=_RESTART,
    )
