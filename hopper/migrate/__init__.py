"""Moving models to the features (HopGNN, section 5)."""
