"""From the world to a plan: a file for each phase of a node, and for each thing that phases share."""
