"""A lab whose machines are whole: systemd as first process, accounting, control groups, ordinary users."""
