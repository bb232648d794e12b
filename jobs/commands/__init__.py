"""The command line `laser`: one command for each thing that a person does with a run."""
