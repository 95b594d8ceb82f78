"""The Kafka-compatible broker over the engine, and what its clients need: `embedlog serve`."""
