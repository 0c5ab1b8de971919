# slurmd without a slurm.conf of its own: it fetches the cluster's from a controller. A virtual node
# also registers itself as a new one (-Z) and tells when it booted, so that a clone is not waited for.
{% from "backfill/service.jinja" import follow with context %}
{%- set controller = pillar['backfill']['controller'] %}
{%- set addresses = [controller.address] + pillar['backfill']['controller'].get('backups', []) %}
{%- set servers = addresses | join(':%s,' % controller.port) ~ ':%s' % controller.port %}
{%- set own = ' -Z -b' if grains['backfill']['kind'] == 'virtual' else '' %}
{%- set more = pillar['backfill']['slurmd']['options'] %}
slurmd-spool:
  file.directory:
    - name: /var/spool/slurmd
    - mode: '0755'
    - makedirs: true

slurmd-log:
  file.directory:
    - name: /var/log/slurm
    - mode: '0755'

slurmd-defaults:
  file.managed:
    - name: /etc/default/slurmd
    - mode: '0644'
    - backup: minion
    - contents: |
        # Written by Salt.
        SLURMD_OPTIONS="--conf-server {{ servers }}{{ own }} {{ more }}"
{{ follow('slurmd', 'slurmd', 'slurmd', ['slurmd-defaults']) }}
