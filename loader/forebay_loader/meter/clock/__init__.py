"""The trainer's side: how long it waited inside ``next(loader)``, for which worker, and what that worker did."""
