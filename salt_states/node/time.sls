# The clock follows the servers that the pillar names; after a pause it is stepped at once, however far it is off.
{% from "backfill/service.jinja" import follow with context %}
{% from "backfill/chrony.jinja" import chrony with context %}
time-client:
  file.managed:
    - name: {{ chrony.conf }}
    - mode: '0644'
    - makedirs: true
    - backup: minion
    - contents: |
        # Written by Salt.
        {%- for server in pillar['backfill']['time']['servers'] %}
        server {{ server }} iburst minpoll 4 maxpoll 6
        {%- endfor %}
        makestep 0.1 -1
        driftfile /var/lib/chrony/chrony.drift
        cmdport 0
        {%- if grains['backfill']['kind'] == 'virtual' %}
        pidfile /run/chronyd.pid
        {%- endif %}
{{ follow('time', chrony.service, 'chronyd', ['time-client']) }}
