"""Making keys and configurations (`keygen`); and the shell scripts that set this checkout up."""
