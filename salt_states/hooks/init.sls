# The programs that slurmctld, or slurmd on a host, calls at a job's start and end, and job_submit.lua
# where the policy file wants one. `backfill slurm hooks` owns them; what the site has of its own stays.
{% from "backfill/guard.jinja" import demand with context %}
{{- demand('controller') }}
slurm-hooks:
  backfill_slurm.hooks_installed:
    - name: {{ pillar['backfill']['slurm']['policy'] }}
    - program: {{ pillar['backfill']['slurm']['program'] }}
    - require:
      - backfill_slurm: slurm-managed-file
