"""Validates a template with Heat's own engine: heat_check.py FILE, in an environment with Heat.

Names of images, flavours and networks belong to a cloud; they are taken as existing here.
"""

import sys
from pathlib import Path

from heat.common import context, template_format
from heat.engine import node_data, resources, stack, stk_defn, template
from oslo_config import cfg


def main():
    """Exit 0 and say how many resources it has, or raise what Heat finds."""
    cfg.CONF([], project="heat")
    resources.initialise()
    for name in list(resources.global_env().constraints):
        known = resources.global_env().constraints[name]
        known.validate = lambda self, value, ctx, template=None: True
    admin = context.RequestContext(
        user_id="u", project_id="p", username="u", is_admin=True, auth_url="http://127.0.0.1/v3"
    )
    parsed = template.Template(template_format.parse(Path(sys.argv[1]).read_text()))
    parsed.validate()
    made = stack.Stack(admin, "check", parsed)
    made.dependencies  # noqa: B018 - resolving them is the check
    for resource in made.values():
        # Without Heat's translation of names into ids, for which it would ask a cloud.
        resource.t.properties(resource.properties_schema, admin).validate(with_value=True)
        # Outputs name attributes: these are all that a resource of this kind will have.
        known = dict.fromkeys(resource.attributes_schema)
        data = node_data.NodeData(None, resource.name, None, resource.name, known, *resource.state)
        stk_defn.update_resource_data(made.defn, resource.name, data)
    for output in made.outputs.values():
        output.validate()
    sys.stdout.write(f"{len(made)}\n")


main()
