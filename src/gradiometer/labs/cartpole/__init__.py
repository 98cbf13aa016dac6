"""PPO on Gymnasium's CartPole-v1: the smallest training that has every part a policy gradient has."""
