"""Fills the test cloud once: catalogue, two projects with credentials, image, flavours, network.

populate.py DIRECTORY, in the services' own environment. Writes DIRECTORY/clouds.yaml.
"""

import io
import json
import sys
from pathlib import Path

import openstack

URL = "http://127.0.0.1:"
SERVICES = (
    ("placement", "placement", f"{URL}8778"),
    ("image", "glance", f"{URL}9292"),
    ("block-storage", "cinder", f"{URL}8776/v3"),
    ("network", "neutron", f"{URL}9696"),
    ("compute", "nova", f"{URL}8774/v2.1"),
)
PROJECTS = ("east", "west")


def catalogue(cloud):
    """Tell Keystone where the others are."""
    for kind, name, url in SERVICES:
        service = cloud.identity.create_service(type=kind, name=name)
        for interface in ("public", "internal", "admin"):
            cloud.identity.create_endpoint(
                service_id=service.id, interface=interface, url=url, region_id="RegionOne"
            )
    # Neutron lets only the role `service` bind a port a second time, as a live migration does.
    role = cloud.identity.find_role("service") or cloud.identity.create_role(name="service")
    cloud.identity.assign_project_role_to_user(cloud.current_project_id, cloud.current_user_id, role.id)


def resources(cloud):
    """Make the resources that instances need."""
    for name, cpus, ram_mb in (("tiny", 1, 256), ("small", 1, 512), ("medium", 2, 1024)):
        cloud.compute.create_flavor(name=name, ram=ram_mb, vcpus=cpus, disk=1)
    cloud.create_image(
        "node",
        data=io.BytesIO(bytes(65536)),
        disk_format="raw",
        container_format="bare",
        visibility="public",
        wait=True,
    )
    network_of(cloud)
    outside = cloud.network.create_network(name="public", is_router_external=True)
    cloud.network.create_subnet(
        network_id=outside.id, name="public", ip_version=4, cidr="192.0.2.0/24", enable_dhcp=False
    )
    zone = cloud.compute.create_aggregate(name="sriov", availability_zone="sriov")
    cloud.compute.add_host_to_aggregate(zone, "c5")
    # A zone of its own keeps nobody out who names none.
    (service,) = cloud.compute.services(host="c5")
    cloud.compute.disable_service(service)


def network_of(cloud):
    """Make a network of the project's own: only there a member may choose a port's address."""
    network = cloud.network.create_network(name="nodes")
    cloud.network.create_subnet(
        network_id=network.id,
        name="nodes",
        ip_version=4,
        cidr="10.77.0.0/16",
        gateway_ip=None,
        enable_dhcp=False,
    )


def project(cloud, name):
    """Make a project with one member, who leaves an application credential."""
    made = cloud.identity.create_project(name=name, domain_id="default")
    user = cloud.identity.create_user(
        name=name, password=name, domain_id="default", default_project_id=made.id
    )
    member = cloud.identity.find_role("member")
    cloud.identity.assign_project_role_to_user(made.id, user.id, member.id)
    theirs = openstack.connection.Connection(
        auth={
            "auth_url": f"{URL}5000/v3",
            "username": name,
            "password": name,
            "project_name": name,
            "user_domain_id": "default",
            "project_domain_id": "default",
        },
        region_name="RegionOne",
    )
    network_of(theirs)
    secret = f"{name}-secret"
    credential = theirs.identity.create_application_credential(
        user=theirs.current_user_id, name="backfill", secret=secret, unrestricted=False
    )
    return {
        "auth_type": "v3applicationcredential",
        "auth": {
            "auth_url": f"{URL}5000/v3",
            "application_credential_id": credential.id,
            "application_credential_secret": secret,
        },
        "region_name": "RegionOne",
        "identity_api_version": 3,
    }


def main():
    """Fill the cloud and write down how to enter it."""
    root = Path(sys.argv[1])
    clouds = json.loads((root / "clouds.yaml").read_text())["clouds"]
    cloud = openstack.connect(cloud="admin")
    if sys.argv[2] == "catalogue":
        catalogue(cloud)
        return
    resources(cloud)
    for name in PROJECTS:
        clouds[name] = project(cloud, name)
    (root / "clouds.yaml").write_text(json.dumps({"clouds": clouds}, indent=2) + "\n")


main()
