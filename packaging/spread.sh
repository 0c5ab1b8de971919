#!/bin/sh
# spread.sh FROM ROOT: puts what an installed backfill has under FROM/share to its places under ROOT, and
# the units, with the program's path, to systemd's.
set -eu
from=$1 root=$2
share=$root/usr/share
if [ -n "$from" ]; then
    mkdir -p "$share"
    cp -a "$from/share/." "$share/"
    rm -rf "$from/share"
fi
install -d "$root/usr/lib/systemd/system"
for unit in backfill backfill-web; do
    sed 's|/opt/backfill/bin/backfill|/usr/bin/backfill|' \
        "$share/backfill/systemd/$unit.service" >"$root/usr/lib/systemd/system/$unit.service"
done
sed -i 's|^StartLimitIntervalSec=.*|&\nConditionPathExists=/etc/backfill/policy.yaml|' \
    "$root/usr/lib/systemd/system/backfill.service"
if [ -d "$share/zsh/site-functions" ]; then
    install -d "$share/zsh/vendor-completions"
    mv "$share/zsh/site-functions/_backfill" "$share/zsh/vendor-completions/_backfill"
    rmdir "$share/zsh/site-functions"
fi
