"""One connection to one libvirtd: its hypervisor, domains and documents as typed values."""
