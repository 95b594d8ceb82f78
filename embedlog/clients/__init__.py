"""Appending, producers, consumers and readers. They know the port (`backends.port`), and no backend."""
