"""What a cache would do with a plan or an access log: the sidecar's own ledger, plans, eviction and look-ahead on a simulated clock.

``replay(workload, line, capacity)`` runs ``ours``, ``lru`` and ``never-evict`` over the same readers and says what each fetched, saved and
let wait. A ``Workload`` is made by ``shuffled`` (a list of shards, epochs, readers) or by ``recording`` (a file).

What is the same as in the sidecar, because it is the same code: Ledger, Plans, Choosing (with Leaving and Displacers), Lookahead (with
Window), Segments, Pace, Optimal. What is a model: the origin (latency, a rate a connection, a rate for all), readers that take bytes at a
steady rate (a shard's as recorded, where it was), removal that takes no time, and no disk that could be slow. Nobody looks who stands still
here: the lead of such a reader stays its own.
"""
