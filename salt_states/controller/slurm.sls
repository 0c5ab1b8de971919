# What slurmctld needs for dynamic nodes, in a file of its own that slurm.conf includes. The managed
# file beside it, backfill.conf, is written by `backfill slurm apply` alone: the state below calls it.
# slurm.conf itself stays the site's, and its restart is never asked for here. Of two lines with the same
# key the later one counts: what the site's SlurmctldParameters has belongs into the pillar as well.
slurm-include:
  file.managed:
    - name: /etc/slurm/backfill-site.conf
    - mode: '0644'
    - makedirs: true
    - contents: |
        # Written by Salt: include it from slurm.conf, then `scontrol reconfigure`.
        SlurmctldParameters={{ (['enable_configless'] + pillar['backfill'].get('slurmctld_parameters', [])) | join(',') }}
        MaxNodeCount={{ pillar['backfill'].get('max_nodes', 1000) }}
        TreeWidth=65533
        NodeSet=virtual Feature=backfill

slurm-managed-file:
  backfill_slurm.applied:
    - name: {{ pillar['backfill']['slurm']['policy'] }}
    - program: {{ pillar['backfill']['slurm']['program'] }}
