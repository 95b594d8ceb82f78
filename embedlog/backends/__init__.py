"""The port that clients use, and its implementations: a directory, alone or shared, or brokers."""
