"""The sockets, and the messages between the servers."""
