"""Guest images for a site: systemd as init, the site's users, and no way for them to become root."""
