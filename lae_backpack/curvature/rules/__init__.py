"""One file per family of Jacobians; `lae_backpack.curvature` registers them all."""
