"""Why the accelerator waits: the time inside ``next(loader)``, and what the worker whose batch was due did meanwhile."""
