"""The verb `keygen`, and the shell scripts that set this checkout up."""
