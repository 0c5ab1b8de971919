# Which roles a machine has is its grain `backfill:role`; what it is told comes from the pillar.
base:
  'backfill:role:controller':
    - match: grain
    - controller
    - hooks
  'backfill:role:node':
    - match: grain
    - node
  'backfill:role:image':
    - match: grain
    - image
