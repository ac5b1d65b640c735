//! Quantities, dtypes and their human formatting.
