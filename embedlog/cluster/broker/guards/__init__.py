"""Authorization around the handlers: a table of the APIs, and guards for those that need more than a row."""
