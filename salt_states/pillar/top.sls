# Every accepted minion belongs to the cluster; keys are made by the daemon, never accepted by hand.
base:
  '*':
    - backfill
