"""Why the accelerator waits: the time inside ``next(loader)``, and what the worker whose batch was due did meanwhile.

The way of a cause: in the worker ``observer.py`` looks at what runs, and ``frame_causes.py`` names it (in the streams
``base/activity.py`` says it); ``page.py`` carries it to the training process; there ``clock/stall_queue.py`` gives it to the stall.
"""
