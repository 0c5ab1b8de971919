"""A whole cluster in a project: as a Heat template, or made without Heat."""
