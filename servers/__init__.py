"""The two server daemons."""
