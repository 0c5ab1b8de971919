# The file server in user space: works with any kernel, and its restart is survived by every mount.
# Whoever is in none of the networks gets what stands outside of CLIENT: nothing.
{% from "backfill/service.jinja" import follow with context %}
{%- set networks = pillar['backfill']['files']['networks'] | join(', ') %}
{%- if not networks %}
{{ raise('the pillar key backfill:files:networks is empty, so nobody could mount backfill:files:exports') }}
{%- endif %}
{% for export in pillar['backfill']['files']['exports'] %}
export-{{ export.path }}:
  file.directory:
    - name: {{ export.path }}
    - makedirs: true
{% endfor %}
file-server:
  file.managed:
    - name: /etc/ganesha/ganesha.conf
    - mode: '0644'
    - makedirs: true
    - backup: minion
    - contents: |
        # Written by Salt.
        NFS_CORE_PARAM { Protocols = 4; NFS_Port = 2049; Enable_NLM = false; Enable_RQUOTA = false; }
        # A lease that is kept while a node gets no CPU for a while, and a short grace: a node that is
        # paused never reclaims, and nothing new is opened before the grace is over.
        NFSv4 { Only_Numeric_Owners = true; Lease_Lifetime = 60; Grace_Period = 10; Minor_Versions = 1; }
        {%- for export in pillar['backfill']['files']['exports'] %}
        EXPORT {
          Export_Id = {{ loop.index }};
          Path = {{ export.path }};
          Pseudo = {{ export.at }};
          Access_Type = None;
          Squash = {{ 'No_Root_Squash' if export.get('trust_root') else 'Root_Squash' }};
          SecType = sys;
          Transports = TCP;
          CLIENT {
            Clients = {{ networks }};
            Protocols = 4;
            Access_Type = {{ 'RW' if export.get('writable') else 'RO' }};
          }
          FSAL { Name = VFS; }
        }
        {%- endfor %}
{{ follow('files', 'nfs-ganesha', 'ganesha', ['file-server']) }}
