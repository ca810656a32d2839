"""The meter in the training process: how long it waits inside ``next(loader)``, for which worker, and what that worker does."""
