"""Appending, producers and consumers. They know the port (`backends.port`) and no backend."""
