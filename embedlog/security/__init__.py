"""Who may do what: identities, credentials, ACLs and quotas, without the network."""
