"""All of Heat, API and engine in one process: orchestration.py DIRECTORY, in an environment with Heat.

It makes its own database and its entry in the catalogue before it serves: only clouds that are to
have it pay for it.
"""

import sys
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

PORT = 8004
_ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 - inside a network namespace of the cloud's own


class Server(ThreadingMixIn, WSGIServer):
    """A thread per request: Heat asks itself while it answers."""

    daemon_threads = True


class Handler(WSGIRequestHandler):
    """The log has what Heat says."""

    def log_message(self, form, *values):
        """Say nothing."""


def make_database():
    """Make an empty one with its tables."""
    import pymysql
    from heat.db import migration

    link = pymysql.connect(host="127.0.0.1", user="root")
    link.cursor().execute("CREATE DATABASE IF NOT EXISTS heat CHARACTER SET utf8mb4")
    link.close()
    migration.db_sync()


def enter_catalogue(clouds):
    """Tell Keystone where it is."""
    from openstack.config import OpenStackConfig
    from openstack.connection import Connection

    cloud = Connection(config=OpenStackConfig(config_files=[str(clouds)]).get_one(cloud="admin"))
    service = cloud.identity.create_service(type="orchestration", name="heat")
    url = f"http://127.0.0.1:{PORT}/v1/%(tenant_id)s"
    for interface in ("public", "internal", "admin"):
        cloud.identity.create_endpoint(
            service_id=service.id, interface=interface, url=url, region_id="RegionOne"
        )


def main():
    """Serve for ever."""
    from oslo_service import backend

    backend.init_backend(backend.BackendType.THREADING)
    from heat.common import config, messaging
    from heat.engine import service
    from heat.rpc import api as rpc
    from oslo_config import cfg
    from oslo_log import log

    root = Path(sys.argv[1])
    log.register_options(cfg.CONF)
    files = [str(root / "etc/heat/heat.conf")]
    cfg.CONF([], project="heat", prog="heat-api", default_config_files=files, default_config_dirs=[])
    log.setup(cfg.CONF, "heat")
    config.set_config_defaults()
    make_database()
    enter_catalogue(root / "clouds.yaml")
    messaging.setup()
    config.startup_sanity_check()
    service.EngineService(cfg.CONF.host, rpc.ENGINE_TOPIC).start()
    app = config.load_paste_app("heat-api")
    make_server(_ALL_ADDRESSES, PORT, app, Server, Handler).serve_forever()


main()
