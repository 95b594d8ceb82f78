"""The state machines of groups and transactions: no I/O, no threads, no clock (time is an argument).

    registry            all groups by name, whatever their type
    events              states, effects and descriptions: the output

    classic             a group of the classic protocol: read this first
      classic_rebalance how its members come together as a generation
      join_phase        how long its join phase lasts
      member            its members, and how they agree on a protocol

    modern_group        a group whose members send heartbeats: of KIP-848, or a share group's members
      consumer_group    what KIP-848 adds
      share_membership  what share groups add
      subscriptions     what its members subscribe to
      patterns          which topics a pattern matches
      modern_member     its members, their heartbeats, and what changes
      assignors         the target assignment
      reconciliation    how a member gets from what it has to its target
      member_timers     what its members must do in time
      classic_requests  what its members of the classic protocol ask
      migration         how a group becomes one of the other protocol, with its members

    share_partition     what a share group does of a partition
      in_flight_records the states of its records
      ready_records     which can be handed out, and what the others wait for
      finished_ranges   which are done with
      share_locks       which are handed out, to whom, and until when
      share_events      the changes that are stored
      share_records     the stored changes, read again

    transaction         a transactional id: its producers and their transactions

Callers hold their lock around each call, store the changes that it returns, and carry out its effects.
"""
