"""Gaussians over weights; laplace-torch lives here only."""
