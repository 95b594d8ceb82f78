"""The file system: system calls on a log's files, their names, watches on directories, sockets in them."""
