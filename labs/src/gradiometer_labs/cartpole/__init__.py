"""PPO, DQN and REINFORCE on Gymnasium's CartPole-v1: small trainings that have every part their
algorithm has."""
