"""What programs and browsers outside of this machine see: metrics, the API, the page."""
