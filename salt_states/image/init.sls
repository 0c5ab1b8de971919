# What is baked into a guest image: everything that is the same in every node, and no secret.
{% from "backfill/guard.jinja" import demand with context %}
{{- demand('image') }}
include:
  - backfill.people
  - image.static
  - image.minion
