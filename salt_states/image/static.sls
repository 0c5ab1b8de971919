# Directories and settings that no boot has to make.
{% for path in ('/var/spool/slurmd', '/var/log/slurm', '/etc/chrony', '/etc/security/limits.d') %}
directory-{{ path }}:
  file.directory:
    - name: {{ path }}
    - makedirs: true
{% endfor %}

# Collecting jitter for libgcrypt costs munged a second without hardware help; urandom is good.
gcrypt:
  file.managed:
    - name: /etc/gcrypt/random.conf
    - makedirs: true
    - contents: |
        disable-jent
        only-urandom

nsswitch:
  file.managed:
    - name: /etc/nsswitch.conf
    - contents: |
        passwd: files
        group: files
        shadow: files
        hosts: files
        services: files
