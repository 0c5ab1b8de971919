"""The script for the hosts: what cannot be done from the controller, to be run there by root, and undone."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from backfill.ui.setup.wishes import Wishes

_SCRIPT = """#!/bin/sh
# By `backfill setup`, for root on each host: sh hosts.sh, or sh hosts.sh --undo. It may be run again.
set -eu
CONF={conf}
KEPT=/var/lib/backfill-host
# It brings its own undoing along, for a day on which the controller's copy is gone.
mkdir -p "$KEPT"
cat >"$KEPT/undo.sh" <<'END'
{undo}END
if [ "${{1:-}}" = --undo ]; then exec sh "$KEPT/undo.sh"; fi
# Keep a file as it was before the first run, then put what comes from standard input in its place.
put() {{
    kept="$KEPT/$(echo "$1" | tr / _)"
    if [ ! -e "$kept/path" ]; then
        mkdir -p "$kept"
        [ ! -e "$1" ] || cp -p "$1" "$kept/file"
        echo "$1" >"$kept/path"
    fi
    cat >"$1.backfill-new"
    [ ! -e "$1" ] || {{ chmod --reference="$1" "$1.backfill-new"; chown --reference="$1" "$1.backfill-new"; }}
    if [ -e "$1" ] && cmp -s "$1" "$1.backfill-new"; then
        rm "$1.backfill-new"
    else
        : >"$KEPT/changed"  # not forgotten where this is killed before the restart
        mv "$1.backfill-new" "$1"
    fi
}}
[ -d {directory} ] || {{ echo "{directory} is not there: mount the shared directory" >&2; exit 1; }}
ip link show {bridge} >/dev/null || {{ echo "there is no bridge {bridge}" >&2; exit 1; }}
# Guests give way to whatever the host itself runs.
systemctl set-property machine.slice CPUWeight=idle 2>/dev/null || true
# A guest's disk is not taken from QEMU's user when it leaves for another host.
if [ -e /etc/libvirt/qemu.conf ]; then
    {{ grep -v '^ *remember_owner *=' /etc/libvirt/qemu.conf || true; echo 'remember_owner = 0'; }} |
        put /etc/libvirt/qemu.conf
fi
# A host without a copy of slurm.conf is told by slurmctld.
if [ -e "$CONF/slurm.conf" ]; then
{copies}
fi
if [ -e "$KEPT/changed" ]; then
    {restart}
    rm "$KEPT/changed"
fi
"""
_RESTART = """systemctl try-restart libvirtd.service virtqemud.service 2>/dev/null || true
    systemctl try-restart slurmd.service 2>/dev/null || true"""
_UNDO = (
    """#!/bin/sh
# By `backfill setup`: this host as it was before.
set -eu
KEPT=/var/lib/backfill-host
for kept in "$KEPT"/*/; do
    [ -e "$kept/path" ] || continue
    to=$(cat "$kept/path")
    if [ -e "$kept/file" ]; then cp -p "$kept/file" "$to"; else rm -f "$to"; fi
    rm -r "$kept"
done
systemctl revert machine.slice >/dev/null 2>&1 || true
rm -r "$KEPT"
"""
    + _RESTART
    + "\n"
)


def host_script(wishes: Wishes, texts: Mapping[str, str], conf: str) -> str:
    """Return the script; `texts` are the controller's files of Slurm, by name."""
    copies = []
    # slurm.conf last: what it includes is there before.
    for name, text in texts.items():
        data = base64.encodebytes(text.encode("utf-8", "surrogateescape")).decode()
        copies.append(f"    base64 -d <<'END' | put \"$CONF/{name}\"\n{data}END")
    return _SCRIPT.format(
        conf=conf,
        directory=wishes.directory,
        bridge=wishes.bridge,
        copies="\n".join(copies),
        undo=_UNDO,
        restart=_RESTART,
    )
