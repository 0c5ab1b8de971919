# What a job on this node may use up.
limits:
  file.managed:
    - name: /etc/security/limits.d/90-backfill.conf
    - mode: '0644'
    - makedirs: true
    - contents: |
        # Written by Salt.
        {%- for item, value in pillar['backfill']['limits'] | dictsort %}
        * - {{ item }} {{ value }}
        {%- endfor %}
{%- if grains['backfill']['kind'] == 'metal' %}

# Instances run in libvirt's slice. A small weight lets them finish their turn before a process of the
# host's own gets the processor; an idle slice (systemd 252, Linux 5.15) gives it up at once.
instances-last:
  file.managed:
    - name: /etc/systemd/system/machine.slice.d/50-backfill.conf
    - mode: '0644'
    - makedirs: true
    - contents: |
        # Written by Salt.
        [Slice]
        CPUWeight=idle
{%- if grains.get('init') == 'systemd' and pillar['backfill'].get('services') != 'leave' %}

instances-last-heard:
  cmd.run:
    - name: systemctl daemon-reload
    - onchanges:
      - file: instances-last
{%- endif %}
{%- endif %}
