# The minion's configuration, tuned by measurement: who it is and its key come with each node's seed.
minion:
  file.managed:
    - name: /etc/salt/minion
    - mode: '0644'
    - makedirs: true
    - contents: |
        # Written by Salt, from salt_states/image/minion.sls.
        master: {{ pillar['backfill']['controller']['address'] }}
        startup_states: highstate
        failhard: true
        multiprocessing: false
        autoload_dynamic_modules: false
        mine_enabled: false
        grains_cache: false
        enable_gpu_grains: false
        enable_fqdns_grains: false
        # Each loader of modules, and there are dozens, would look for these two anew.
        cython_enable: false
        enable_zip_modules: false
        log_level: warning
        log_level_logfile: warning
        tcp_keepalive_idle: 10
        tcp_keepalive_cnt: 3
        tcp_keepalive_intvl: 5
        # Each look for the master makes all loaders anew: every 10 s that took a tenth of a guest's
        # CPU where guests run in software. A connection that is dead is noticed by keepalive.
        master_alive_interval: 60
        master_tries: -1
        acceptance_wait_time: 2
        recon_default: 200
        recon_max: 1000
        auth_timeout: 5
        auth_tries: 3
        random_reauth_delay: 2
