"""An ML2 mechanism driver for the test cloud: binds every normal port, without an agent."""

from neutron_lib import constants
from neutron_lib.api.definitions import portbindings
from neutron_lib.plugins.ml2 import api


class BindAll(api.MechanismDriver):
    """Ports are ACTIVE as soon as they are bound, so that Nova waits for nobody."""

    @property
    def connectivity(self):
        """Layer 2, as far as anybody asks."""
        return portbindings.CONNECTIVITY_L2

    def initialize(self):
        """Nothing is needed."""

    def bind_port(self, context):
        """Take the first segment. Other ports are for the driver of their hardware."""
        if context.current.get(portbindings.VNIC_TYPE) != portbindings.VNIC_NORMAL:
            return
        for segment in context.segments_to_bind:
            details = {portbindings.CAP_PORT_FILTER: True, "bridge_name": "br-cloud"}
            context.set_binding(
                segment[api.ID], portbindings.VIF_TYPE_BRIDGE, details, status=constants.PORT_STATUS_ACTIVE
            )
            return
