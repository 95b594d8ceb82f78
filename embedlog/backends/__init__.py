"""The port that clients use, and its implementations: over a local directory, or over the wire."""
