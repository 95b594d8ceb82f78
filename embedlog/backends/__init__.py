"""The port that clients use, and what is behind it: a local directory, or brokers."""
