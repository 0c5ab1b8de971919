"""One service of the test cloud: service.py NAME DIRECTORY, in the services' own environment.

Nova's API, conductor, scheduler and compute hosts share one process, so that no message broker is
needed; the others are one process each.
"""

import os
import platform
import shlex
import signal
import sys
import threading
import time
import uuid
from pathlib import Path

PORTS = {"keystone": 5000, "placement": 8778, "glance": 9292, "cinder": 8776, "neutron": 9696, "nova": 8774}
METADATA_PORT = 8775
# A compute host whose cards have virtual functions, as Nova's fake driver has them.
DEVICES, PHYSICAL_NETWORK = "c5", "physnet2"
_REPORT_S = 20.0
_VIR_MIGRATE_UNSAFE = 1 << 9
_ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 - inside a network namespace of the cloud's own


def serve(app, port, threads):
    """Serve a WSGI application for ever."""
    from cheroot import wsgi

    address = (_ALL_ADDRESSES, port)
    server = wsgi.Server(address, app, numthreads=threads, request_queue_size=128)
    server.shutdown_timeout = 1
    server.safe_start()


def nova(etc, computes, guests):
    """All of Nova; `computes`: hosts of the fake driver, `guests`: those with real ones."""
    from nova import monkey_patch

    monkey_patch.patch(backend="threading")
    import os_brick
    import os_vif
    from nova import config, objects, utils
    from nova.conf import CONF
    from oslo_log import log
    from oslo_privsep import priv_context

    config.parse_args(["nova"], default_config_files=[str(etc / "nova.conf")])
    log.setup(CONF, "nova")
    priv_context.init(root_helper=shlex.split(utils.get_root_helper()))
    objects.register_all()
    os_brick.setup(CONF)
    os_vif.initialize()
    _be_privileged_in_this_process()
    if CONF.compute_driver.startswith("fake."):
        _steady_fake_hosts()
    return _start_nova(etc, computes, guests)


def _be_privileged_in_this_process():
    import nova.privsep
    from vif_plug_linux_bridge import privsep as linux_bridge

    nova.privsep.sys_admin_pctxt.set_client_mode(False)
    linux_bridge.vif_plug.set_client_mode(False)


def _steady_fake_hosts():
    """Make the fake driver's node ids of names: it invents them, and a restart must find its hosts."""
    from nova.compute import manager
    from nova.virt import fake

    class Steady:
        def __getattr__(self, name):
            return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))

    fake.uuids = Steady()
    manager.ComputeManager._ensure_existing_node_identity = lambda self, ref: None


def _start_nova(etc, computes, guests):
    from nova import context, service
    from nova.api.openstack import wsgi_app
    from nova.compute import rpcapi as compute_rpc
    from nova.conductor import rpcapi as conductor_rpc
    from nova.conf import CONF
    from nova.objects import host_mapping
    from nova.pci import utils as pci
    from nova.scheduler import rpcapi as scheduler_rpc
    from paste import deploy

    def start(binary, topic, host, **more):
        made = service.Service.create(binary=binary, topic=topic, host=host, **more)
        if binary == "nova-compute" and CONF.compute_driver.startswith("libvirt."):
            _ask_the_machine_nothing(made.manager.driver, host)
        if host == DEVICES:
            _shorten_names_of_cards(made.manager.driver)
        made.start()
        if binary == "nova-compute" and CONF.compute_driver.startswith("libvirt."):
            # libvirt knows what is shared by the kind of file system; here two hosts have one.
            made.manager.driver._live_migration_flags |= _VIR_MIGRATE_UNSAFE
        # The first report comes late by itself, and until then it counts as down.
        made.servicegroup_api._driver._report_state(made)

    start("nova-conductor", conductor_rpc.RPC_TOPIC, "ctl")
    start("nova-scheduler", scheduler_rpc.RPC_TOPIC, "ctl")
    for host in computes:
        start("nova-compute", compute_rpc.RPC_TOPIC, host, topic_alt=compute_rpc.RPC_TOPIC_ALT)
    for place in guests:
        # A compute host takes its driver, and where its libvirtd is, when it is made.
        host, _, uri = place.partition("=")
        CONF.set_override("compute_driver", "libvirt.LibvirtDriver")
        CONF.set_override("connection_uri", uri, "libvirt")
        start("nova-compute", compute_rpc.RPC_TOPIC, host, topic_alt=compute_rpc.RPC_TOPIC_ALT)
    # What it would read of its cards in /sys is not there.
    pci.get_mac_by_pci_address = lambda address, pf_interface=False: "52:54:00:1e:59:c6"
    pci.get_vf_num_by_pci_address = lambda address: 1
    CONF.set_override("compute_driver", "fake.FakeDriverWithPciResources")
    start("nova-compute", compute_rpc.RPC_TOPIC, DEVICES, topic_alt=compute_rpc.RPC_TOPIC_ALT)
    host_mapping.discover_hosts(context.get_admin_context())
    os.environ["OS_NOVA_CONFIG_DIR"] = str(etc)
    wsgi_app._setup_service("ctl", "osapi_compute")
    # What each guest may ask: it is known by its address.
    metadata = deploy.loadapp(f"config:{etc / 'api-paste.ini'}", name="metadata")
    threading.Thread(target=serve, args=(metadata, METADATA_PORT, 2), daemon=True).start()
    return deploy.loadapp(f"config:{etc / 'api-paste.ini'}", name="osapi_compute")


def _ask_the_machine_nothing(driver, host):
    """Ask the machine nothing: several hosts are on it, and it is not for them alone."""
    # Nova reads one id per machine out of a file.
    node = str(uuid.uuid5(uuid.NAMESPACE_DNS, host))
    driver._host.get_node_uuid = lambda: node
    # Volumes are files here; it would look for cards and initiators, by sudo, and write /etc/nvme.
    about = {
        "platform": platform.machine(),
        "os_type": sys.platform,
        "host": host,
        "ip": "127.0.0.1",
        "multipath": False,
    }
    driver.get_volume_connector = lambda instance: dict(about)


def _shorten_names_of_cards(driver):
    """Shorten the fake driver's words for maker and product: a real database has no room for them."""
    whole = driver.get_available_resource

    def shortened(nodename):
        seen = whole(nodename)
        cards = seen["pci_passthrough_devices"]
        for long, short in (("fake-vendor_id", "8086"), ("fake-product_id", "1520")):
            cards = cards.replace(long, short)
        return {**seen, "pci_passthrough_devices": cards}

    driver.get_available_resource = shortened


def _report_cards():
    """Report again and again what the agent of the host with virtual functions would."""
    from neutron.db import agents_db
    from neutron_lib import constants, context
    from oslo_utils import timeutils

    state = {
        "binary": "neutron-sriov-nic-agent",
        "host": DEVICES,
        "topic": "N/A",
        "agent_type": constants.AGENT_TYPE_NIC_SWITCH,
        "configurations": {"device_mappings": {PHYSICAL_NETWORK: ["ens2", "ens3"]}},
        "start_flag": True,
    }
    endpoint = agents_db.AgentExtRpcCallback()
    while True:
        now = timeutils.utcnow().isoformat()
        endpoint.report_state(context.get_admin_context(), agent_state={"agent_state": dict(state)}, time=now)
        state.pop("start_flag", None)
        time.sleep(_REPORT_S)


def cinder(etc):
    """All of Cinder, with one backend. It is written for eventlet's threads only."""
    import eventlet

    eventlet.monkey_patch()
    from cinder import coordination, objects, privsep, rpc, service
    from cinder.common import config, constants
    from eventlet import wsgi
    from oslo_config import cfg
    from oslo_log import log
    from paste import deploy

    objects.register_all()
    cfg.CONF([], project="cinder", default_config_files=[str(etc / "cinder.conf")])
    log.setup(cfg.CONF, "cinder")
    config.set_middleware_defaults()
    privsep.sys_admin_pctxt.set_client_mode(False)
    rpc.init(cfg.CONF)
    (backend,) = cfg.CONF.enabled_backends
    host = f"{cfg.CONF.host}@{backend}"
    coordination.COORDINATOR.start()
    for binary, words in (
        (constants.SCHEDULER_BINARY, {}),
        (constants.VOLUME_BINARY, {"host": host, "service_name": backend}),
    ):
        made = service.Service.create(binary=binary, **words)
        # They start beside each other: the scheduler waits for what the backend says of itself.
        eventlet.spawn(made.start)
    app = deploy.loadapp(f"config:{etc / 'api-paste.ini'}", name="osapi_volume")
    socket = eventlet.listen((_ALL_ADDRESSES, PORTS["cinder"]), backlog=128)
    wsgi.server(socket, app, log_output=False)


def application(name, etc, computes, guests):
    """Make the WSGI application of one service."""
    if name == "nova":
        return nova(etc, computes, guests)
    os.environ[f"OS_{name.upper()}_CONFIG_DIR"] = str(etc)
    os.environ["OS_NEUTRON_CONFIG_FILES"] = "neutron.conf"
    if name == "keystone":
        from keystone.wsgi.api import application as app
    elif name == "placement":
        from placement.wsgi.api import application as app
    elif name == "glance":
        from glance.wsgi.api import application as app
    else:
        # Models refer to each other, also to those of extensions that are not in use.
        from neutron import policy
        from neutron.db.migration.models import head
        from neutron.wsgi.api import application as app
        from sqlalchemy.orm import configure_mappers

        head.get_metadata()
        configure_mappers()
        # Its first request makes the rules of access, and others that come meanwhile find none:
        # they are refused, and see empty lists.
        policy.init()
        threading.Thread(target=_report_cards, daemon=True).start()
    return app


def main():
    """Run the service named on the command line."""
    name, root = sys.argv[1], Path(sys.argv[2])
    computes = sys.argv[3].split(",") if len(sys.argv) > 3 else []
    guests = sys.argv[4:]
    # Nova opens guests' consoles without O_NOCTTY: as a leader of its session it would get one as
    # its terminal, and die of a hang-up when that guest ends.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.argv = [name]
    sys.path.insert(0, str(root / "plugins"))
    os.environ["OS_NOVA_DISABLE_EVENTLET_PATCHING"] = "1"
    if name == "cinder":
        cinder(root / "etc" / name)
        return
    app = application(name, root / "etc" / name, computes, guests)
    serve(app, PORTS[name], 32 if name == "nova" else 16)


main()
