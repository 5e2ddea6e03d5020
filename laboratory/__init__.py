"""Training, attacks and measurements around the service: what the extra `[train]` is for.

`init` and `train` are for real clients; everything else shows and measures the service on one
machine. Read the modules in dependency order: `data`, `models`, `attacks`, `options`, `worker`,
`cli`, then `plaintext`, `processes`, `daemons`, `training_run`, `show`, `demo`, and last `plots`,
`report`, `experiments`.
"""
