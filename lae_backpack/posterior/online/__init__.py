"""Monte-Carlo EM: training mean and precision together."""
