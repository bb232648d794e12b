"""The page of a report: words, charts and every text, in one HTML file that loads nothing."""
