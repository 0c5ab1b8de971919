# What the master needs beyond its defaults: few workers, no key that nobody asked for.
master-options:
  file.managed:
    - name: /etc/salt/master.d/backfill.conf
    - mode: '0644'
    - makedirs: true
    - contents: |
        # Written by Salt.
        auto_accept: false
        open_mode: false
        {%- for key, value in pillar['backfill']['salt']['master_options'] | dictsort %}
        {{ key }}: {{ value | json }}
        {%- endfor %}
