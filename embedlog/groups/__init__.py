"""Groups and transactions: the coordinators, which store and keep time, around the machines that decide."""
