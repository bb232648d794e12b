"""Token ids in, token ids out: batched decoding with verified draft trees."""
