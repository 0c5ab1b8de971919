"""One service of the test cloud: service.py NAME DIRECTORY, in the services' own environment.

Nova's API, conductor, scheduler and compute hosts share one process, so that no message broker is
needed; the others are one process each.
"""

import os
import shlex
import signal
import sys
import uuid
from pathlib import Path

PORTS = {
    "keystone": 5000, "placement": 8778, "glance": 9292, "cinder": 8776, "neutron": 9696,
    "nova": 8774,
}  # fmt: skip
_ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 - inside a network namespace of the cloud's own


def serve(app, port, threads):
    """Serve a WSGI application for ever."""
    from cheroot import wsgi

    address = (_ALL_ADDRESSES, port)
    server = wsgi.Server(address, app, numthreads=threads, request_queue_size=128)
    server.shutdown_timeout = 1
    server.safe_start()


def nova(etc, computes, guests):
    """All of Nova; `computes`: hosts of the fake driver, `guests`: one with real guests, or ""."""
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
    """The fake driver invents node ids in every process; a restart must find its hosts again."""
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
    from nova.scheduler import rpcapi as scheduler_rpc
    from paste import deploy

    def start(binary, topic, host, **more):
        made = service.Service.create(binary=binary, topic=topic, host=host, **more)
        made.start()
        # The first report comes late by itself, and until then it counts as down.
        made.servicegroup_api._driver._report_state(made)

    start("nova-conductor", conductor_rpc.RPC_TOPIC, "ctl")
    start("nova-scheduler", scheduler_rpc.RPC_TOPIC, "ctl")
    for host in computes:
        start("nova-compute", compute_rpc.RPC_TOPIC, host, topic_alt=compute_rpc.RPC_TOPIC_ALT)
    if guests:
        # A compute host takes its driver when it is made.
        CONF.set_override("compute_driver", "libvirt.LibvirtDriver")
        start("nova-compute", compute_rpc.RPC_TOPIC, guests, topic_alt=compute_rpc.RPC_TOPIC_ALT)
    host_mapping.discover_hosts(context.get_admin_context())
    os.environ["OS_NOVA_CONFIG_DIR"] = str(etc)
    wsgi_app._setup_service("ctl", "osapi_compute")
    return deploy.loadapp(f"config:{etc / 'api-paste.ini'}", name="osapi_compute")


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
    """The WSGI application of one service."""
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
        from neutron.db.migration.models import head
        from neutron.wsgi.api import application as app
        from sqlalchemy.orm import configure_mappers

        head.get_metadata()
        configure_mappers()
    return app


def main():
    """Run the service named on the command line."""
    name, root = sys.argv[1], Path(sys.argv[2])
    computes = sys.argv[3].split(",") if len(sys.argv) > 3 else []
    guests = sys.argv[4] if len(sys.argv) > 4 else ""
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
