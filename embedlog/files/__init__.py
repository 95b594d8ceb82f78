"""The file system: all system calls on a log's files, their names, and watches on directories."""
