# A sample: copy it, put your own values in, and keep the file readable by the master alone.
backfill:
  schema: 1
  cluster: sample
  controller:
    name: ctl
    address: 10.77.0.1
    port: 6817
  munge:
    # base64 of /etc/munge/munge.key; this one is nobody's.
    key_base64: c2FtcGxlIGtleSBvZiBub2JvZHksIGxvbmcgZW5vdWdoIGZvciBtdW5nZQ==
  hosts:
    bm1: 10.77.0.11
    bm2: 10.77.0.12
  groups:
    - {name: science, gid: 5000}
  users:
    - {name: ada, uid: 5001, gid: 5000, home: /home/ada}
  time:
    servers: [10.77.0.1]
    networks: [10.77.0.0/16]
  files:
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
