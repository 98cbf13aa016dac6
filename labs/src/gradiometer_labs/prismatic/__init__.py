"""A small language model whose feed-forward blocks are experts: merged by a Prismatic router, or
routed to the top k."""
