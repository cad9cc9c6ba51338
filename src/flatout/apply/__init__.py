"""Plans carried out and taken back: pure edits of files, and the loop over the steps."""
