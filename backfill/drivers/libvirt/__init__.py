"""libvirt hypervisors, through libvirt-python."""
