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
