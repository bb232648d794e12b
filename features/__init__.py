"""Knowledge to vectors, and the check that a click-through-rate model gains from them."""
