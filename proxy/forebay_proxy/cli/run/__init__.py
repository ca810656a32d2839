"""``forebay run`` and ``forebay env``: joining a sidecar, and taking over a training script."""
