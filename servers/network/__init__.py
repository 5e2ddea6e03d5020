"""What travels: sockets, and the messages between the servers."""
