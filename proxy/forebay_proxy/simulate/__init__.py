"""What a cache would do for a run: an estimate from its sizes and rates, or a replay of its openings on the sidecar's own policy.

``replay`` drives the same ``Ledger``, ``PlanRegistry``, ``AdmissionPolicy`` and ``PrefetchScheduler`` as the sidecar, opening by opening.
It has no time: whatever is asked for is there at once. So it tells bytes, not seconds.
"""
