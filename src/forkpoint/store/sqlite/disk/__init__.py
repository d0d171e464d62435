"""The files of a store on the disk: their modes, their log, and reading them without writing."""
