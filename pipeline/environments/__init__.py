"""What a prompt asks and how an answer is rewarded."""
