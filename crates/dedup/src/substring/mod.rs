//! Exact substrings through suffix arrays.
