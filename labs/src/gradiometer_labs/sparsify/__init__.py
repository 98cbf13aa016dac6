"""REINFORCE on a graph: a network chooses the strong connections that algebraic multigrid coarsens
along."""
