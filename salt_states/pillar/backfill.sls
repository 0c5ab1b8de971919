# A sample: copy it, put your own values in, and keep the file readable by the master alone. What is
# commented out may be left out.
backfill:
  schema: 1
  cluster: sample
  controller:
    name: ctl
    address: 10.77.0.1
    port: 6817
    # backups: [10.77.0.5]   # the other controllers
  munge:
    # What `base64 -w0 /etc/munge/munge.key` says. No state runs without it.
    key_base64:
  # services: leave        # the states start and restart no service
  # slurmctld_parameters: [cloud_reg_addrs]  # all that slurm.conf has there: the line of Salt's comes later
  # max_nodes: 1000        # MaxNodeCount
  # What /etc/hosts of instances holds; with `dns: true` they ask the name servers for all other names.
  # dns: true
  hosts:
    bm1: 10.77.0.11
    bm2: 10.77.0.12
  groups:
    - {name: science, gid: 5000}
  users:
    - {name: ada, uid: 5001, gid: 5000, home: /home/ada}
  time:
    # The servers from which bare metal has its time. With `upstream` the controller is one: it follows these
    # and serves `networks`. Salt then owns its chrony, and that of bare metal.
    servers: [10.77.0.2]
    # upstream: [10.77.0.2]
    networks: [10.77.0.0/16]
  files:
    # Who may mount what the controller exports: root of such a machine can act as any user there. As root
    # only where the export says `trust_root: true`. With `exports: []` the file server stays the site's.
    networks: [10.77.0.0/16]
    exports:
      - {path: /srv/backfill/home, at: /home, writable: true}
      - {path: /srv/backfill/software, at: /software}
    mounts:
      - {source: '10.77.0.1:/home', at: /home, writable: true}
      - {source: '10.77.0.1:/software', at: /software}
  limits:
    memlock: unlimited
    nofile: 131072
  slurmd:
    options: ''
  slurm:
    # Whose rules `backfill slurm` carries out on the controller, and where that program is.
    policy: /etc/backfill/policy.yaml
    program: /opt/backfill/bin/backfill
  salt:
    master_options:
      worker_threads: 3
  # Always the last key: states refuse a pillar that was not rendered to its end.
  sentinel: backfill-pillar-complete
