"""The meter: how long the trainer waits inside ``next(loader)``, and for what. It looks at the worker whose batch is due.

In a worker, ``observer.py`` samples the running thread and ``frame_causes.py`` maps its stack to a cause; waits for bytes come from
``base/activity.py``. ``page.py`` is the shared memory that carries them to the training process. There ``clock/stall_queue.py`` divides
each stall among the causes.
"""
