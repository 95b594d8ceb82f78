"""What a partition is made of: appender, reader, checkpoints, leader epochs, producer state, group commit."""
