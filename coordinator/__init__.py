"""The coordinator: opens rounds, leads a run unattended, and shows it on a dashboard."""
