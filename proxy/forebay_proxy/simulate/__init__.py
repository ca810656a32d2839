"""What a cache would do with a plan or an access log: the sidecar's own ledger, plans, eviction and scheduler on a simulated clock.

``replay(workload, line, capacity)`` runs ``ours``, ``lru`` and ``never-evict`` over the same readers and says what each fetched, saved and
let wait. A ``Workload`` is made by ``shuffled`` (a list of shards, epochs, readers) or by ``recording`` (a file).

The same code as in the sidecar: ``Ledger``, ``PlanRegistry``, ``AdmissionPolicy``, ``PrefetchScheduler``, ``ReadAheadWindow``,
``Segments``. A model: the origin (latency, a rate a connection, a rate for all), readers that take bytes at a steady rate
(a shard's as recorded, where it was), removal that takes no time, and no disk that could be slow. Readers that stand still are not looked
for: the lead of such a reader stays its own.
"""
