"""Groups of similar entities, and the pools of earlier knowledge that drafts come from."""
