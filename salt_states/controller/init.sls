# The controller: Salt's master and our part of slurm.conf, and what the pillar makes it serve: time where
# `time:upstream` is given, files where there are exports. Otherwise the site's own stays as it is.
{% from "backfill/guard.jinja" import demand with context %}
{{- demand('controller') }}
include:
  - backfill.people
  - backfill.munge
  - controller.slurm
{%- if pillar['backfill']['time'].get('upstream') %}
  - controller.time
{%- endif %}
{%- if pillar['backfill']['files']['exports'] %}
  - controller.files
{%- endif %}
  - controller.master
