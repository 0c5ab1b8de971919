"""Instances in an OpenStack project, through openstacksdk."""
