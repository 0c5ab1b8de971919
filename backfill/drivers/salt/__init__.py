"""The Provisioner port over a Salt master on this machine; Salt itself lives in its own process."""
