"""What rooms tell of what happened, as frozen values: metrics, log and page listen, tests record."""
