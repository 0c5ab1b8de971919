# Words of the scripts below /usr/local/sbin by which a guest comes up. Sourced by busybox's shell.
export PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C
step() { read -r up rest </proc/uptime; echo "BACKFILL-STEP $1 $up" >/dev/console; }
# What a clone needs soon is read now, once for all of them; its sum tells whether memory is intact.
warm_files() {
    cat /usr/sbin/munged /usr/sbin/slurmd /usr/sbin/slurmstepd /bin/bash \
        /usr/lib/x86_64-linux-gnu/slurm-wlm/*.so | md5sum
}
# With auth/slurm the seed brings Slurm's own key, and munge has nothing to do.
without_munge() { [ -s /etc/slurm/slurm.key ] || [ -s /etc/slurm/slurm.jwks ]; }
# The agent's device; there may be no udev yet to give it its name.
agent_device() {
    for dir in /sys/class/virtio-ports/vport*; do
        read -r name 2>/dev/null <"$dir/name" && [ "$name" = org.qemu.guest_agent.0 ] &&
            echo "/dev/${dir##*/}"
    done
}
