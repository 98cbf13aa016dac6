"""SAC on Gymnasium's Pendulum-v1: continuous actions, replay, twin critics with targets, a learned
temperature."""
