# Of an instance alone: names before DNS, since a black hole in the resolver must not hold up a boot.
# On machines of the site its users, the names of its servers and more hang on these two files.
hosts:
  file.managed:
    - name: /etc/hosts
    - mode: '0644'
    - contents: |
        127.0.0.1 localhost
        {{ pillar['backfill']['controller']['address'] }} {{ pillar['backfill']['controller']['name'] }}
        {%- if grains['backfill'].get('node') %}
        {{ grains['backfill']['address'] }} {{ grains['backfill']['node'] }}
        {%- endif %}
        {%- for name, address in pillar['backfill']['hosts'] | dictsort %}
        {{ address }} {{ name }}
        {%- endfor %}

nsswitch:
  file.managed:
    - name: /etc/nsswitch.conf
    - mode: '0644'
    - contents: |
        passwd: files
        group: files
        shadow: files
        hosts: files{{ ' dns' if pillar['backfill'].get('dns') else '' }}
        services: files
