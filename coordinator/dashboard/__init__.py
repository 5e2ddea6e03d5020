"""A page for a browser: `watch` asks the servers, `app` serves what it knows of rounds."""
