"""What we do: the controller, its workers, and the command line."""
