# Network file systems. `hard`: after a pause of hours, or a server's restart, work goes on where it
# was instead of seeing errors. `nofail` and our own helper: a missing server holds up no boot.
# `nosuid,nodev`: whoever is root on another node must not leave a program here that runs as root.
{%- set options = 'vers=4.1,proto=tcp,hard,timeo=50,retrans=3,noatime,nofail,nosuid,nodev' %}
{% for mount in pillar['backfill']['files']['mounts'] %}
{%- set server = mount.source.split(':')[0] %}
mount-point-{{ mount.at }}:
  file.directory:
    - name: {{ mount.at }}
    - makedirs: true

mount-{{ mount.at }}:
  mount.mounted:
    - name: {{ mount.at }}
    - device: '{{ mount.source }}'
    - fstype: nfs4
    - opts: {{ 'rw' if mount.get('writable') else 'ro' }},{{ options }},addr={{ server }}
    - persist: true
    # What the kernel shows otherwise, or not at all: no reason to mount anew under a running job.
    - extra_mount_invisible_options: [vers, proto, hard, timeo, retrans, noatime, nofail, nosuid, nodev, addr]
    - mount: {{ pillar['backfill'].get('services') != 'leave' }}
    - require:
      - file: mount-point-{{ mount.at }}
{% endfor %}
