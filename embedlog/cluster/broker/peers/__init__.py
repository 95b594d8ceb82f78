"""Requests to other brokers of the cluster, about transactions that span them."""
