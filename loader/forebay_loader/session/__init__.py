"""``fb.sidecar()`` and ``fb.status()``."""
