# Users and groups that jobs run as: the same numbers everywhere, or files belong to strangers.
{% for group in pillar['backfill']['groups'] %}
group-{{ group.name }}:
  group.present:
    - name: {{ group.name }}
    - gid: {{ group.gid }}
{% endfor %}
{% for user in pillar['backfill']['users'] %}
user-{{ user.name }}:
  user.present:
    - name: {{ user.name }}
    - uid: {{ user.uid }}
    - gid: {{ user.gid }}
    - home: {{ user.home }}
    - createhome: false
    - shell: {{ user.get('shell', '/bin/bash') }}
{% endfor %}
