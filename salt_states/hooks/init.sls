# The programs that slurmctld, or slurmd on a host, calls at a job's start and end.
{% from "backfill/guard.jinja" import demand with context %}
{{- demand('controller') }}
{% for name in ('prolog', 'epilog') %}
hook-{{ name }}:
  # The daemon builds the hook. An empty program in its place would fail every job, so none is made.
  file.exists:
    - name: {{ pillar['backfill']['hooks'][name] }}
{% endfor %}

job-submit:
  file.managed:
    - name: /etc/slurm/job_submit.lua
    - source: salt://hooks/job_submit.lua
    - mode: '0644'
    - makedirs: true
