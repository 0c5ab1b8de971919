"""Programs that run in the environment of the test cloud's services, not in ours."""
