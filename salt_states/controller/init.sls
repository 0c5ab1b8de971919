# The controller: time and files for all nodes, Salt's master, and our part of slurm.conf.
{% from "backfill/guard.jinja" import demand with context %}
{{- demand('controller') }}
include:
  - backfill.hosts
  - backfill.people
  - backfill.munge
  - controller.slurm
  - controller.time
  - controller.files
  - controller.master
