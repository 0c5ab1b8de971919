# A Slurm node, bare-metal or virtual: the grain `backfill:kind` tells them apart.
# Nothing here is installed at boot, and no state asks `unless`, `onlyif` or `creates`: each of those
# loads every module of Salt (measured: 0.6 to 1.9 s per run).
{% from "backfill/guard.jinja" import demand with context %}
{{- demand('node') }}
include:
{%- if grains['backfill']['kind'] == 'virtual' %}
  - backfill.hosts
{%- endif %}
  - backfill.people
  - backfill.munge
  - node.limits
{%- if grains['backfill']['kind'] == 'virtual' or pillar['backfill']['time'].get('upstream') %}
  - node.time
{%- endif %}
  - node.files
  - node.slurmd
  - node.done
