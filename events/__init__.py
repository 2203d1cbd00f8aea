"""What can happen: the vocabulary of events, their wire form, and the logs that keep them."""
