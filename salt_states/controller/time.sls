# The cluster's time server, between the site's and the nodes. `local`: nodes agree with the controller even when it is cut off.
{% from "backfill/service.jinja" import follow with context %}
{% from "backfill/chrony.jinja" import chrony with context %}
time-server:
  file.managed:
    - name: {{ chrony.conf }}
    - mode: '0644'
    - makedirs: true
    - backup: minion
    - contents: |
        # Written by Salt.
        {%- for server in pillar['backfill']['time']['upstream'] %}
        server {{ server }} iburst
        {%- endfor %}
        {%- for network in pillar['backfill']['time']['networks'] %}
        allow {{ network }}
        {%- endfor %}
        local stratum 8
        makestep 1 3
        driftfile /var/lib/chrony/chrony.drift
        rtcsync
{{ follow('time', chrony.service, 'chronyd', ['time-server']) }}
