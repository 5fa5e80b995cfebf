"""Pure decisions: observation in, decisions out. No clock, no I/O, no logging; imports the model only."""
