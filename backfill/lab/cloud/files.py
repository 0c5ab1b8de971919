"""Writes the configuration of the test cloud's services; everything listens in its own network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

KEYSTONE = "http://127.0.0.1:5000/v3"
SOCKET = "mariadb.sock"
_PASSWORD = "admin"  # noqa: S105 - of a cloud that nobody outside its namespace can reach
AUTH = f"""auth_type = password
auth_url = {KEYSTONE}
username = admin
password = {_PASSWORD}
project_name = admin
user_domain_id = default
project_domain_id = default
"""
TOKEN = f"""[keystone_authtoken]
www_authenticate_uri = {KEYSTONE}
service_token_roles_required = false
{AUTH}"""
DATABASES = ("keystone", "placement", "glance", "cinder", "neutron", "nova", "nova_api", "nova_cell0")
_PLUGIN, _VOLUMES = "bindall", "filevolumes"
# Devices of Nova's fake driver: one virtual function on each of two cards.
PHYSICAL_NETWORK = "physnet2"
_DEVICES = {
    "address": {"domain": "0000", "bus": "0[23]", "slot": "00", "function": ".*"},
    "physical_network": PHYSICAL_NETWORK,
}
_FILTERS = ",".join(
    f"{name}Filter"
    for name in (
        "Compute",
        "ComputeCapabilities",
        "ImageProperties",
        "PciPassthrough",
        "ServerGroupAntiAffinity",
        "ServerGroupAffinity",
    )
)


def database(name: str) -> str:
    """Return the address of one database, as SQLAlchemy writes it."""
    return f"mysql+pymysql://root@127.0.0.1/{name}?charset=utf8mb4"


def write(root: Path, env: Path, driver: str) -> None:
    """All files below `root`; `env`: the services' environment, `driver`: Nova's compute driver."""
    for new in (
        "db",
        "log",
        "images",
        "staging",
        "tasks",
        "volumes",
        "cinder",
        "nova/instances",
        "neutron",
        "locks",
        "run",
        "scratch",
        "etc/keystone/fernet",
        "etc/keystone/credential",
    ):
        (root / new).mkdir(parents=True, exist_ok=True)
    for keys in ("fernet", "credential"):
        (root / "etc/keystone" / keys).chmod(0o700)
    texts = {
        "keystone/keystone.conf": _keystone(root),
        "placement/placement.conf": _placement(root),
        "glance/glance-api.conf": _glance(root),
        "cinder/cinder.conf": _cinder(root),
        "neutron/neutron.conf": _neutron(root),
        "nova/nova.conf": _nova(root, driver),
    }
    for path, text in texts.items():
        (root / "etc" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "etc" / path).write_text(text)
    for source, target in (
        ("glance/glance-api-paste.ini", "glance"),
        ("cinder/api-paste.ini", "cinder"),
        ("cinder/resource_filters.json", "cinder"),
        ("neutron/api-paste.ini", "neutron"),
        ("nova/api-paste.ini", "nova"),
    ):
        shutil.copy(env / "etc" / source, root / "etc" / target)
    (root / "mariadb.cnf").write_text(_mariadb(root))
    _write_plugin(root / "plugins")
    _write_clouds(root / "clouds.yaml")


def _write_plugin(place: Path) -> None:
    """Neutron finds its drivers by the entry points of installed packages."""
    about = place / f"{_PLUGIN}-1.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_PLUGIN}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        f"[neutron.ml2.mechanism_drivers]\n{_PLUGIN} = {_PLUGIN}:BindAll\n"
    )
    for driver in (_PLUGIN, _VOLUMES):
        shutil.copy(Path(__file__).with_name("inside") / f"{driver}.py", place)


def _write_clouds(path: Path) -> None:
    if path.exists():
        return
    auth = dict(line.split(" = ") for line in AUTH.strip().splitlines()[1:])
    entry = {"auth": auth, "region_name": "RegionOne", "identity_api_version": 3}
    path.write_text(json.dumps({"clouds": {"admin": entry}}, indent=2) + "\n")


def _mariadb(root: Path) -> str:
    return f"""[mysqld]
datadir = {root}/db
socket = {root}/run/{SOCKET}
pid-file = {root}/run/mariadb.pid
tmpdir = {root}/scratch
log-error = {root}/log/mariadb.log
bind-address = 127.0.0.1
user = root
skip-name-resolve
skip-grant-tables
max_connections = 400
innodb_buffer_pool_size = 64M
innodb_log_file_size = 8M
# A crash loses the whole cloud anyway.
innodb_flush_log_at_trx_commit = 0
innodb_flush_method = nosync
innodb_doublewrite = 0
performance_schema = off
"""


def _common(root: Path, service: str, section: str = "database") -> str:
    return f"""[DEFAULT]
log_file = {root}/log/{service}.log
[{section}]
connection = {database(service)}
"""


def _keystone(root: Path) -> str:
    keys = root / "etc/keystone"
    return f"""{_common(root, "keystone")}
[fernet_tokens]
key_repository = {keys}/fernet
[fernet_receipts]
key_repository = {keys}/fernet
[credential]
key_repository = {keys}/credential
[token]
provider = fernet
expiration = 14400
[identity]
password_hash_rounds = 4
[cache]
enabled = true
backend = oslo_cache.dict
"""


def _placement(root: Path) -> str:
    return f"""{_common(root, "placement", "placement_database")}
[api]
auth_strategy = keystone
{TOKEN}"""


def _glance(root: Path) -> str:
    return f"""[DEFAULT]
log_file = {root}/log/glance.log
enabled_backends = fs:file
worker_self_reference_url = http://127.0.0.1:9292
[database]
connection = {database("glance")}
[glance_store]
default_backend = fs
[fs]
filesystem_store_datadir = {root}/images
[os_glance_staging_store]
filesystem_store_datadir = {root}/staging
[os_glance_tasks_store]
filesystem_store_datadir = {root}/tasks
[paste_deploy]
flavor = keystone
{TOKEN}"""


def _cinder(root: Path) -> str:
    return f"""[DEFAULT]
host = ctl
log_file = {root}/log/cinder.log
transport_url = fake:///
auth_strategy = keystone
api_paste_config = {root}/etc/cinder/api-paste.ini
resource_query_filters_file = {root}/etc/cinder/resource_filters.json
state_path = {root}/cinder
enabled_backends = {_VOLUMES}
glance_api_servers = http://127.0.0.1:9292
[{_VOLUMES}]
volume_driver = {_VOLUMES}.FileDriver
volume_backend_name = {_VOLUMES}
volumes_dir = {root}/volumes
[database]
connection = {database("cinder")}
[oslo_concurrency]
lock_path = {root}/locks
{TOKEN}"""


def _neutron(root: Path) -> str:
    return f"""[DEFAULT]
log_file = {root}/log/neutron.log
core_plugin = ml2
service_plugins = router
transport_url = fake://
auth_strategy = keystone
api_paste_config = {root}/etc/neutron/api-paste.ini
notify_nova_on_port_status_changes = false
notify_nova_on_port_data_changes = false
state_path = {root}/neutron
dhcp_agent_notification = false
[oslo_concurrency]
lock_path = {root}/locks
[database]
connection = {database("neutron")}
[ml2]
type_drivers = vlan
tenant_network_types = vlan
mechanism_drivers = {_PLUGIN},sriovnicswitch
extension_drivers = port_security
[ml2_type_vlan]
network_vlan_ranges = {PHYSICAL_NETWORK}:100:199
[quotas]
quota_port = -1
{TOKEN}"""


def _nova(root: Path, driver: str) -> str:
    return f"""[DEFAULT]
host = ctl
my_ip = 127.0.0.1
log_file = {root}/log/nova.log
transport_url = fake:///
compute_driver = {driver}
state_path = {root}/nova
instances_path = {root}/nova/instances
vif_plugging_is_fatal = false
vif_plugging_timeout = 0
report_interval = 10
service_down_time = 60
sync_power_state_interval = 600
heal_instance_info_cache_interval = 600
default_schedule_zone = nova
block_device_allocate_retries = 180
block_device_allocate_retries_interval = 1
[api_database]
connection = {database("nova_api")}
[database]
connection = {database("nova")}
[oslo_concurrency]
lock_path = {root}/locks
[oslo_messaging_notifications]
driver = noop
[placement]
region_name = RegionOne
{AUTH}
[service_user]
send_service_user_token = true
{AUTH}
[glance]
region_name = RegionOne
service_type = image
[neutron]
region_name = RegionOne
{AUTH}
[pci]
device_spec = {json.dumps(_DEVICES)}
[cinder]
catalog_info = block-storage::publicURL
[quota]
instances = 500
cores = 2000
ram = -1
[workarounds]
skip_hypervisor_version_check_on_lm = true
[scheduler]
workers = 1
[filter_scheduler]
host_subset_size = 1
enabled_filters = {_FILTERS}
[libvirt]
virt_type = qemu
cpu_mode = none
images_type = raw
[vnc]
enabled = false
[wsgi]
api_paste_config = {root}/etc/nova/api-paste.ini
{TOKEN}"""
