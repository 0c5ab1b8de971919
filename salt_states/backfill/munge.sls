# The munge key: the same on every machine of the cluster, and shown nowhere.
{% from "backfill/service.jinja" import follow with context %}
munge-directory:
  file.directory:
    - name: /etc/munge
    - user: munge
    - group: munge
    - mode: '0700'

# First an empty file that nobody else can read; then the key goes into it.
munge-key-place:
  file.managed:
    - name: /etc/munge/munge.key
    - user: munge
    - group: munge
    - mode: '0400'
    - replace: false
    - show_changes: false
    - require:
      - file: munge-directory

munge-key:
  file.decode:
    - name: /etc/munge/munge.key
    - contents_pillar: backfill:munge:key_base64
    - checksum: sha256
    - require:
      - file: munge-key-place
{{ follow('munge', 'munge', 'munged', ['munge-key']) }}
