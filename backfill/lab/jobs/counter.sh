#!/bin/bash
# Counting job: COUNT numbers, one every PERIOD_S seconds, over one connection to the tally.
count=${1:-100} period_s=${2:-0.1} tally=${BACKFILL_TALLY:-10.77.0.1/9777}
exec 3<>"/dev/tcp/$tally" || exit 1
say() { printf '%s %s %s %s %s\n' "$SLURM_JOB_ID" "${SLURM_RESTART_COUNT:-0}" "$1" "$EPOCHREALTIME" "$HOSTNAME" >&3 || exit 1; }
# A read from a pipe that nobody writes to waits without starting a program every time. It has a
# name for a moment only: the minimal guest has no /dev/fd for bash's own way of doing this.
pipe=$(mktemp -u) && mkfifo "$pipe" && exec 4<>"$pipe" || exit 1
rm "$pipe"
for ((i = 1; i <= count; i++)); do
    say "$i"
    read -r -t "$period_s" -u 4
done
say end
