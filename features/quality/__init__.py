"""What texts are like beside what a CTR model gains from them; see `summary`."""
