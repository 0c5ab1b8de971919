"""BUILDS: a real cluster on one machine, in namespaces of its own."""
