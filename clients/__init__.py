"""The people's side: what turns a local model into shares, and what opens and watches rounds.

Read the modules in dependency order: `config`, `connection`, `update`, `upload`, `client`, then for training `data`,
`models`, `attacks`, `worker`, and last `files` and `cli`. Only what `models` trains with needs torch, and only the
digits of `data` scikit-learn: both come with `[train]`.
"""
