"""System calls, file names, and directory watches: all that touches the file system goes through here."""
