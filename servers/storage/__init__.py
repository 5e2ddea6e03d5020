"""All that outlasts a restart: the database, clients' shares, runs and results."""
