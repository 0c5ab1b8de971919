"""Validates a template with Heat's own engine: heat_check.py FILE, in an environment with Heat.

Names of images, flavours and networks belong to a cloud; they are taken as existing here.
"""

import sys
from pathlib import Path

from heat.common import context, template_format
from heat.engine import resources, stack, template
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
    for output in made.outputs.values():
        output.validate()
    sys.stdout.write(f"{len(made)}\n")


main()
