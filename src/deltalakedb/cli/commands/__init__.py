"""The commands, by noun; a module is imported when one of its commands is used."""
