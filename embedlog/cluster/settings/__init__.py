"""A broker's settings and its topics', under Kafka's names."""
