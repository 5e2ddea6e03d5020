"""Training, attacks and measurements around the service, which need the extra `[train]`.

The verbs `init`, `public-set` and `train` are for real clients. Everything else shows and measures
the service on one machine. Read the modules in dependency order: `data`, `models`, `attacks`,
`worker_options`, `distillation`, `worker`, `cli`, then `plaintext`, `processes`, `servers`,
`training_run`, `show`, `demo`, and last `plots`, `report`, `experiments`.
"""
