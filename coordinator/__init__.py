"""The coordinator: opens rounds, runs a training unattended, and shows it on a dashboard."""
