#!/bin/sh
# Runs the real tests in two groups at a time: they wait much more than they compute.
# In CI what failed is run once more by itself, and both outcomes are shown: these tests live on real
# clocks, daemons and software-emulated guests. Without CI set, a failure is a failure.
set -u
cd "$(dirname "$0")/.."
mkdir -p .pytest_cache
group() { # NAME [--last-failed ...] FILE...
    name=$1
    shift
    .venv/bin/python -m pytest -q -m "real and not soak" -o "cache_dir=.pytest_cache/$name" \
        --durations=10 "$@"
}
# Guests and daemons in labs; and all else: Slurm without guests, clouds, Salt. Each takes about half.
set -- tests/real/test_lab.py tests/real/test_lab_guest.py tests/real/test_libvirt_*.py \
    tests/real/test_scenario_*.py tests/contract/test_libvirt_real.py
guests=$*
others=$(ls tests/real/test_*.py tests/contract/test_*.py)
for file in $guests; do
    others=$(echo "$others" | grep -vx "$file")
done
other_log=$(mktemp)
trap 'rm -f "$other_log"' EXIT
group others $others >"$other_log" 2>&1 &
other_pid=$!
# What the shell runs beside itself does not hear INT; its labs end with it.
trap 'kill -TERM $other_pid 2>/dev/null; wait $other_pid; cat "$other_log"; exit 130' INT TERM
failed=
group guests $guests || failed="guests"
wait $other_pid || failed="$failed others"
cat "$other_log"
[ -n "$failed" ] || exit 0
[ -n "${CI:-}" ] || exit 1
for name in $failed; do
    echo "=== FAILED ABOVE ($name); once more, only these:"
    eval "files=\$$name"
    group "$name" --last-failed --last-failed-no-failures none $files || exit 1
done
