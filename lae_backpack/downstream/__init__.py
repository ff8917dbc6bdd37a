"""What people do with the uncertainty: outliers, imputation, few labels, geometry."""
