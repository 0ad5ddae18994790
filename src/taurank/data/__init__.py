"""What was logged: ids, files, sources, the reader, the log, and the archive format of saved files."""
