"""Consumer groups: state machines without I/O, and the coordinator that drives them."""
